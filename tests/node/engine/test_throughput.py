"""Measure how fast an engine is, from a few seconds of work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from node.engine.fake import FakeConfig, FakeEngine
from node.engine.interface import Generation, GenerationRequest, InstalledVersion
from node.engine.throughput import LONGEST_S, MOST_ROLLOUTS, TOKENS, measure_speed
from protocol.core.digest import digest_of
from protocol.core.ids import ManifestHash
from tests.support.trainer_fixture import version


class WatchedEngine(FakeEngine):
    """Notes how many completions of how many tokens it was asked for."""

    asked: list[tuple[int, int]]

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Generation]:
        self.asked = [*getattr(self, "asked", []), (len(requests), requests[0].max_new_tokens)]
        return await super().generate(requests)


async def engine(directory: Path, *, seconds_per_token: float) -> WatchedEngine:
    for name in ("config.json", "model.safetensors"):
        (directory / name).touch()
    watched = WatchedEngine(FakeConfig(seconds_per_token=seconds_per_token))
    manifest = ManifestHash(digest_of(b"any"))
    await watched.install(InstalledVersion(name=version("1.0"), manifest=manifest), directory)
    return watched


async def test_it_is_what_a_batch_makes_in_a_second(tmp_path: Path, autojump_clock: MockClock) -> None:
    quick = await engine(tmp_path, seconds_per_token=0.01)
    assert await measure_speed(quick, 8) == pytest.approx(800)
    assert quick.asked == [(8, tokens) for tokens in TOKENS]


async def test_a_slow_engine_gets_as_far_as_it_does_in_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    slow = await engine(tmp_path, seconds_per_token=0.5)
    assert await measure_speed(slow, 8) == pytest.approx(16)
    assert trio.current_time() == LONGEST_S
    assert slow.asked[-1] == (8, TOKENS[-1])  # which was not waited for


async def test_one_that_gets_nowhere_has_no_figure(tmp_path: Path, autojump_clock: MockClock) -> None:
    assert await measure_speed(await engine(tmp_path, seconds_per_token=60.0), 8) == 0
    assert trio.current_time() == LONGEST_S


async def test_one_that_refuses_or_takes_no_time_has_no_figure(tmp_path: Path, autojump_clock: MockClock) -> None:
    assert await measure_speed(FakeEngine(FakeConfig()), 8) == 0  # nothing is installed
    assert await measure_speed(await engine(tmp_path, seconds_per_token=0.0), 8) == 0


async def test_a_large_batch_is_tried_in_part(tmp_path: Path, autojump_clock: MockClock) -> None:
    quick = await engine(tmp_path, seconds_per_token=0.001)
    await measure_speed(quick, 10 * MOST_ROLLOUTS)
    assert {rollouts for rollouts, _ in quick.asked} == {MOST_ROLLOUTS}
