"""Programs that strangers may write, for every wall that is built around programs: the same must hold behind each."""

FORK_BOMB = """
import os, time
made = 0
try:
    for made in range(10_000):
        if os.fork() == 0:
            time.sleep(1000)
except OSError:
    print(made, flush=True)
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
"""It prints how many processes it could have, and never ends."""
