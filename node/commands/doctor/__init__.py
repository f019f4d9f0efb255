"""`volery doctor`: how this machine is connected, what it can do for a swarm, and what is missing.

- `command`: reads the invite and the configuration, examines the machine, and prints the findings
"""
