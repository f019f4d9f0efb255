"""Verified records in, policy versions out.

Nothing here touches the network or trio. torch is imported by `policy`, `trainer`, `objective` and `packing` alone, and
those run only in the trainer's child process.
"""
