"""Configure vLLM for tests, and make the requests to its engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import trio

from node.engine.interface import Generation, GenerationRequest
from node.engine.vllm import VllmConfig
from node.engine.worker_engine import WorkerEngine
from node.processes.spec import RestartLimits
from tests.support.node_fixtures import VOCAB_SIZE

KV_CACHE_BYTES = 48 * 2**20
"""Bytes of the cache: twice what the requests in flight take. vLLM fills its cache in a circle, so all of its memory is
soon used: that is no leak."""


def config(python: Path) -> VllmConfig:
    restarts = RestartLimits(first_delay_s=0.0)
    return VllmConfig(python=python, eager=True, kv_cache_bytes=KV_CACHE_BYTES, restarts=restarts)


def requests(
    count: int, *, room: int, stops: frozenset[int] = frozenset(), experts: bool = False
) -> list[GenerationRequest]:
    """Return sampled and greedy requests, of several prompts and temperatures, with seeds of all 64 bits."""
    return [
        GenerationRequest(
            prompt=tuple((7 * i + j) % VOCAB_SIZE for j in range(1 + 5 * (i % 9))),
            seed=(2**64 - 1) // (i + 1),
            temperature=(1.0, 0.6, 1.4)[i % 3],
            max_new_tokens=room - 3 * (i % 5),
            stop_ids=stops,
            greedy=i % 7 == 3,
            experts=experts,
        )
        for i in range(count)
    ]


async def generated_while(
    engine: WorkerEngine, asked: Sequence[GenerationRequest], do: Callable[[], Awaitable[None]]
) -> list[Generation]:
    """Return the completions of `asked` if something is done while they are generated. On a busy machine they may be
    complete by then.
    """
    made: list[Generation] = []

    async def generate() -> None:
        made.extend(await engine.generate(asked))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(generate)
        await engine.generate(requests(1, room=3))  # the others are under way once this one is generated
        await do()
    return made
