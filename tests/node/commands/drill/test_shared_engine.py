"""The players' engine names what it generates, and tells a player alone that its weights are gone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing
from safetensors.numpy import save_file

from node.commands.drill.shared_engine import KEPT, SharedEngine, Weights
from node.engine.fake import FakeConfig, FakeEngine
from node.engine.interface import EngineRefused, FinishReason, GenerationRequest, InstallFailed
from protocol.core.ids import PolicyVersion
from tests.swarm.versions.test_patch_routes import signed

ASKED = GenerationRequest(prompt=(1, 2), seed=7, max_new_tokens=4, stop_ids=frozenset({0}), temperature=1.0)
NEWEST = 2 * KEPT


@pytest.fixture
async def foundry(tmp_path: Path) -> SharedEngine:
    model = tmp_path / "model"
    model.mkdir()
    save_file({"weight": np.zeros((2, 2), np.float32)}, model / "model.safetensors")
    (model / "config.json").write_text("{}")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    made = SharedEngine(engine=FakeEngine(FakeConfig()), scratch=scratch)
    for number in range(1, NEWEST + 1):
        await made.publish(signed(number, {}), model)
    return made


def version(number: int) -> PolicyVersion:
    return PolicyVersion(1, number)


async def test_the_first_and_the_newest_weights_are_kept_and_every_name(foundry: SharedEngine) -> None:
    kept = [version(number) for number in (1, *range(NEWEST - KEPT + 1, NEWEST + 1))]
    assert foundry.list_kept(version(0)) == kept
    assert foundry.first == version(1)
    assert len(list(foundry.scratch.iterdir())) == KEPT + 1
    assert foundry.name_version(version(1)).manifest == signed(1, {}).hash


async def test_who_asks_for_weights_that_are_gone_is_refused_and_the_others_are_served(foundry: SharedEngine) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(foundry.run)
        with pytest.raises(EngineRefused, match=r"version 1\.2 are no longer kept"):
            await foundry.generate([ASKED], Weights(version=version(2)))
        [made] = await foundry.generate([ASKED], Weights(version=version(NEWEST)))
        assert made.finish in FinishReason
        assert len(made.tokens) > 0
        nursery.cancel_scope.cancel()


async def test_weights_that_go_while_they_are_waited_for_stay(foundry: SharedEngine, tmp_path: Path) -> None:
    oldest = foundry.list_kept(version(2))[0]
    async with trio.open_nursery() as nursery:
        served = trio.Event()

        async def ask() -> None:
            assert await foundry.generate([ASKED], Weights(version=oldest))
            served.set()

        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        await foundry.publish(signed(NEWEST + 1, {}), tmp_path / "model")
        assert foundry.list_kept(version(2))[0] == oldest
        nursery.start_soon(foundry.run)
        await served.wait()
        nursery.cancel_scope.cancel()


async def test_files_that_are_gone_are_told_to_who_asked(foundry: SharedEngine) -> None:
    for path in foundry.scratch.glob("*/*"):
        path.unlink()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(foundry.run)
        with pytest.raises(InstallFailed):
            await foundry.generate([replace(ASKED, seed=8)], Weights(version=version(NEWEST)))
        nursery.cancel_scope.cancel()
