"""Run spans of many completions in rounds: which ones share a round, wait, or fail alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from node.engine.fake import FakeConfig, open_fake_engine
from node.engine.interface import (
    EngineCrashed,
    EngineError,
    EngineRefused,
    Generation,
    GenerationRequest,
    InstalledVersion,
    OnTokens,
)
from node.serving.rounds import Rounds
from protocol.core.ids import ManifestHash, PolicyVersion

VERSION = InstalledVersion(name=PolicyVersion(1, 1), manifest=ManifestHash(bytes(32)))


@dataclass
class Recorded:
    """An engine that records how many requests each call has, and does what `before` does first."""

    engine: Any
    calls: list[int] = field(default_factory=list)
    ended: int = 0
    before: Callable[[Sequence[GenerationRequest]], None] = lambda requests: None

    async def generate_streaming(self, requests: Sequence[GenerationRequest], on_tokens: OnTokens) -> list[Generation]:
        self.calls.append(len(requests))
        self.before(requests)
        made: list[Generation] = await self.engine.generate_streaming(requests, on_tokens)
        self.ended += 1
        return made


def request(seed: int, tokens: int = 4, prompt: tuple[int, ...] = (1,)) -> GenerationRequest:
    return GenerationRequest(
        prompt=prompt, seed=seed, temperature=1.0, max_new_tokens=tokens, stop_ids=frozenset(), greedy=False
    )


@dataclass
class Asking:
    """Completions that ask: `running` is how many there are."""

    rounds: Rounds
    running: list[int]
    heard: dict[int, list[int]] = field(default_factory=dict)
    failures: dict[int, EngineError] = field(default_factory=dict)

    async def ask(self, seed: int, tokens: int = 4, prompt: tuple[int, ...] = (1,)) -> None:
        heard = self.heard.setdefault(seed, [])
        try:
            await self.rounds.generate(request(seed, tokens, prompt), lambda _, tokens, __: heard.extend(tokens))
        except EngineError as error:
            self.failures[seed] = error


@pytest.fixture
async def asking(tmp_path: Path) -> Any:
    (tmp_path / "config.json").touch()
    (tmp_path / "model.safetensors").touch()
    async with open_fake_engine(FakeConfig(seconds_per_token=1.0)) as engine, trio.open_nursery() as nursery:
        await engine.install(VERSION, tmp_path)
        running = [1]
        rounds = Rounds(engine=Recorded(engine), num_running=lambda: running[0])  # type: ignore[arg-type]
        nursery.start_soon(rounds.run)
        yield Asking(rounds, running)
        nursery.cancel_scope.cancel()


def calls_of(asking: Asking) -> list[int]:
    engine: Any = asking.rounds.engine
    return list(engine.calls)


async def test_what_is_asked_for_together_is_one_round(asking: Asking, autojump_clock: MockClock) -> None:
    asking.running[0] = 3
    async with trio.open_nursery() as nursery:
        for seed in range(3):
            nursery.start_soon(asking.ask, seed)
    assert calls_of(asking) == [3]
    assert [len(tokens) for tokens in asking.heard.values()] == [4, 4, 4]


async def test_who_comes_during_a_round_is_in_the_next(asking: Asking, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking.ask, 0)
        await trio.sleep(1)
        for seed in (1, 2):
            nursery.start_soon(asking.ask, seed)
    assert calls_of(asking) == [1, 2]


async def test_one_that_never_asks_holds_nobody_up(asking: Asking, autojump_clock: MockClock) -> None:
    asking.running[0] = 2  # the other's client reads slowly
    began = trio.current_time()
    await asking.ask(0)
    assert trio.current_time() - began == pytest.approx(4 + asking.rounds.grace_s)


async def test_a_round_ends_once_nobody_waits_for_it(asking: Asking, autojump_clock: MockClock) -> None:
    with trio.move_on_after(1):
        await asking.ask(0, tokens=1000)
    began = trio.current_time()
    await asking.ask(1)
    assert trio.current_time() - began == pytest.approx(4)
    engine: Any = asking.rounds.engine
    assert (engine.calls, engine.ended) == ([1, 1], 1)


async def test_one_bad_request_is_refused_alone(asking: Asking, autojump_clock: MockClock) -> None:
    asking.running[0] = 3
    async with trio.open_nursery() as nursery:
        nursery.start_soon(asking.ask, 0)
        nursery.start_soon(asking.ask, 1, 4, (9999,))
        nursery.start_soon(asking.ask, 2)
    assert asking.failures.keys() == {1}
    assert isinstance(asking.failures[1], EngineRefused)
    assert [len(asking.heard[seed]) for seed in (0, 2)] == [4, 4]


async def test_a_crash_is_told_to_all(asking: Asking, autojump_clock: MockClock) -> None:
    asking.running[0] = 2
    async with trio.open_nursery() as nursery:
        for seed in range(2):
            nursery.start_soon(asking.ask, seed)
        await trio.sleep(1)
        engine: Any = asking.rounds.engine
        engine.engine.crash()
    assert [type(error) for error in asking.failures.values()] == [EngineCrashed, EngineCrashed]
    await asking.ask(2)
    assert len(asking.heard[2]) == 4
