"""vLLM tells which experts of a mixture made each token: those that the transformers engine chooses for the same ones.

Both compute in float32, where their routers never differed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from node.engine.conformance import FIRST, SECOND
from node.engine.interface import EngineRefused, FinishReason, Generation, GenerationRequest
from node.engine.transformers import TransformersConfig
from node.engine.worker_engine import WorkerEngine, open_worker_engine
from tests.support.node_fixtures import Models
from tests.support.vllm_requests import config, generated_while, requests

ROOM, IN_FLIGHT = 1500, 12
"""So long that something happens while they are generated, and few enough to be generated again."""
ATTEMPTS = 5
"""At doing something while completions are under way: on a busy machine this process may sleep until all are done."""


def require_same(made: Sequence[Generation], right: Sequence[Generation]) -> None:
    """The same tokens, and each by the same experts; their order in a layer has no meaning."""
    for mine, theirs in zip(made, right, strict=True):
        assert mine.tokens == theirs.tokens
        assert mine.experts is not None
        assert theirs.experts is not None
        assert np.array_equal(np.sort(mine.experts, -1), np.sort(theirs.experts, -1))


def part(one: Generation, number: int) -> Generation:
    """What one version made of a completion, with its experts."""
    assert one.experts is not None
    span = one.spans[number]
    tokens, experts = one.tokens[span.start : span.end], one.experts[span.start : span.end]
    return replace(one, tokens=tokens, experts=experts)


async def under_way(
    engine: WorkerEngine, models: Models, do: Callable[[], Awaitable[None]], hit: Callable[[Generation], bool]
) -> list[tuple[GenerationRequest, Generation]]:
    """Those completions that were `hit` by what was done while they were generated."""
    asked = requests(IN_FLIGHT, room=ROOM, experts=True)
    for _ in range(ATTEMPTS):
        await engine.install(FIRST, models.mixture)
        made = await generated_while(engine, asked, do)
        if found := [(request, one) for request, one in zip(asked, made, strict=True) if hit(one)]:
            return found
    pytest.fail(f"nothing was under way, in {ATTEMPTS} attempts")


async def require_swap(engine: WorkerEngine, reference: WorkerEngine, models: Models) -> None:
    """Weights change in mid-completion: each token's experts are those of the weights that drew it."""
    engine.on_new_version = "continue"
    swapped = await under_way(
        engine, models, lambda: engine.install(SECOND, models.second_mixture), lambda one: len(one.spans) == 2
    )
    for number, version, directory in ((0, FIRST, models.mixture), (1, SECOND, models.second_mixture)):
        await reference.install(version, directory)
        right = await reference.generate(
            [
                replace(
                    request,
                    prompt=request.prompt + one.tokens[: one.spans[number].start],
                    start=one.spans[number].start,
                    max_new_tokens=one.spans[number].end - one.spans[number].start,
                )
                for request, one in swapped
            ]
        )
        require_same([part(one, number) for _, one in swapped], right)


async def require_part(engine: WorkerEngine, models: Models) -> None:
    """Check that an interrupted completion has the experts of its tokens."""
    for _, one in await under_way(engine, models, engine.interrupt, lambda one: one.finish is FinishReason.PART):
        assert one.experts is not None
        assert one.experts.shape == (len(one.tokens), 2, 2)


async def test_the_experts_of_a_token_are_those_that_made_it(vllm_python: Path, models: Models) -> None:
    async with open_worker_engine(TransformersConfig()) as reference, open_worker_engine(config(vllm_python)) as engine:
        asked = requests(48, room=40, stops=frozenset({5}), experts=True)
        for version, directory in (
            (FIRST, models.mixture),
            (SECOND, models.second_mixture),
            (FIRST, models.mixture),
        ):
            await reference.install(version, directory)
            await engine.install(version, directory)
            require_same(await engine.generate(asked), await reference.generate(asked))
        [untold] = await engine.generate(requests(1, room=8))
        assert untold.experts is None
        await require_swap(engine, reference, models)
        await require_part(engine, models)
        await engine.install(FIRST, models.first)
        with pytest.raises(EngineRefused, match="the experts of a qwen3 were requested"):
            await engine.generate(requests(1, room=8, experts=True))
