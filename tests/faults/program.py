"""Run one node: `python -m tests.faults.program ASSIGNMENT`, with the commands and reports of `node`.

It ends with 0 when its input ends, and with 1 and one line on standard error when its store cannot be used.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import trio

from benchmarks.network.founding import found, key_of
from swarm.libp2p import open_libp2p
from swarm.store import ChunkStore, StoreError
from swarm.transport.error_groups import first_cause
from tests.faults.hostile import HOSTILE, ForgetfulStore
from tests.faults.node import Assignment, Node, read_commands

STORES = {"forgetful": ForgetfulStore}
KINDS: dict[str, type[Node]] = {"honest": Node, **HOSTILE}


async def play(task: Assignment) -> None:
    kept = STORES.get(task.kind, ChunkStore)
    with kept.open(Path(task.store), found()[1]) as store, first_cause():
        async with open_libp2p(key_of(task.name).seed, [task.listen]) as transport:
            await KINDS[task.kind](task, transport, store).run(read_commands())


def main() -> None:
    try:
        trio.run(play, msgspec.json.decode(sys.argv[1], type=Assignment))
    except StoreError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
