"""Run hosts of ours that tell every peer that connects its outside address, and do nothing else.

    python -m benchmarks.network.node_observers ADDRESS,ADDRESS ADDRESS ...

Each word starts one host, which listens at those addresses. The standard output is one line of JSON: the addresses of
each host, with its name. The program ends with its standard input.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

import trio

from swarm.libp2p import open_libp2p

SEED_BYTES = 32


async def serve(listen: Sequence[Sequence[str]]) -> None:
    """Run these hosts until standard input ends."""
    async with AsyncExitStack() as stack:
        hosts = [await stack.enter_async_context(open_libp2p(os.urandom(SEED_BYTES), places)) for places in listen]
        print(json.dumps([host.addresses() for host in hosts]), flush=True)
        await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)


if __name__ == "__main__":
    trio.run(serve, [word.split(",") for word in sys.argv[1:]])
