"""A small model that cannot be made is told in a sentence, whoever finds out; so is a drill that cannot be played."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from node.commands.drill import command as program
from node.commands.drill.attacks import Attack
from node.commands.drill.command import Terms, run_drill, small_swarm
from node.engine.interface import EngineRefused
from node.learner_role.training import tiny_model as starting_model
from node.processes.outcomes import ChildRefused
from node.runtime.errors import RunError, UsageError
from node.runtime.events import EventLog

FULL = "No space left on device"


class Failing:
    """A trainer or an engine, as it stands in a nursery of its own."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def call(self, op: str, header: dict[str, Any]) -> None:
        await trio.lowlevel.checkpoint()
        raise self.error

    @asynccontextmanager
    async def opened(self, *args: object, **options: object) -> AsyncIterator[Failing]:
        async with trio.open_nursery():
            yield self


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ChildRefused("error", f"{FULL}; free some space"), f"{FULL}; free some space. Name another directory"),
        (EngineRefused("error", f"{FULL}."), f"{FULL}. Name another directory after --out."),
        (OSError(28, FULL), f"cannot be written: {FULL}. Name another directory after --out."),
    ],
)
async def test_a_disk_that_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    for name in ("open_child", "open_engine"):
        monkeypatch.setattr(starting_model, name, Failing(error).opened)
    with pytest.raises(RunError) as raised:
        await small_swarm(tmp_path, steps=1, seed=0, events=EventLog())
    assert said in str(raised.value)
    assert str(tmp_path) in str(raised.value)


def terms(out: Path, *, peers: int = 4, cheats: float = 0.25) -> Terms:
    return Terms(config=None, out=out, peers=peers, cheats=cheats, attacks=tuple(Attack), steps=1, seed=0)


async def test_a_drill_whose_engine_cannot_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def drill(*args: object) -> None:
        raise EngineRefused("error", FULL)

    monkeypatch.setattr(program, "_drill", drill)
    with pytest.raises(RunError, match=f"The engine of the drill's peers failed: {FULL}. Fix that"):
        await run_drill(terms(tmp_path / "drilled"), as_json_text=False, plain=True)


@pytest.mark.parametrize(
    ("peers", "cheats", "said"),
    [
        (
            4,
            0.1,
            "--cheats 0.1 of --peers 4 comes to no cheat at all. Use --cheats 0.25 or more, or more --peers; --cheats",
        ),
        (7, 0.01, "Use --cheats 0.15 or more"),
        (1, 0.1, "Use more --peers; --cheats 0 runs without any."),
        (4, 1.0, "would leave no honest one"),
    ],
)
async def test_a_drill_has_cheats_if_it_is_to(tmp_path: Path, peers: int, cheats: float, said: str) -> None:
    with pytest.raises(UsageError) as raised:
        await run_drill(terms(tmp_path / "drilled", peers=peers, cheats=cheats), as_json_text=False, plain=True)
    assert said in str(raised.value)
    assert not (tmp_path / "drilled").exists()


def test_the_share_that_is_advised_is_enough(tmp_path: Path) -> None:
    for peers in range(2, 257):
        with pytest.raises(UsageError) as raised:
            program._require_parts(terms(tmp_path, peers=peers, cheats=1e-9))
        advised = float(str(raised.value).partition("Use --cheats ")[2].split()[0])
        program._require_parts(terms(tmp_path, peers=peers, cheats=advised))
        program._require_parts(terms(tmp_path, peers=peers, cheats=0.0))
