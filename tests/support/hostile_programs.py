"""Provide programs that strangers may write, for every sandbox: the same must hold in each."""

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
"""A program that prints how many processes it could have, and never ends."""
