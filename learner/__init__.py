"""Verified records in, policy versions out.

Nothing here touches the network or trio, but for the ranks of one trainer among themselves. Only what trains imports
torch (pyproject.toml has the list), and that runs in the trainer's child process alone.
"""
