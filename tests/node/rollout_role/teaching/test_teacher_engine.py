"""The teacher in its engine: loaded once more after a crash, asked in halves where memory is short, and believed only
where it says numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio

from node.engine.interface import EngineCrashed, EngineError, EngineRefused, InstalledVersion, InstallFailed
from node.rollout_role.teaching.teacher_engine import load, scores_of

FOUR = [((1,), (2, 3))] * 4


@dataclass
class Teacher:
    """Says -1 of every token. `script` is asked before every call, with how many calls there were."""

    script: Callable[[str, int, int], None] = lambda op, call, sequences: None
    says: float = -1.0
    asked: list[int] = field(default_factory=list)

    async def install(self, version: InstalledVersion, directory: Path) -> None:
        await trio.lowlevel.checkpoint()
        self.asked.append(0)
        self.script("install", len(self.asked), 0)

    async def score(
        self, sequences: Sequence[tuple[tuple[int, ...], tuple[int, ...]]], temperature: float
    ) -> list[tuple[float, ...]]:
        await trio.lowlevel.checkpoint()
        self.asked.append(len(sequences))
        self.script("score", len(self.asked), len(sequences))
        return [(self.says,) * len(tokens) for _, tokens in sequences]


async def test_what_is_too_much_at_once_is_asked_in_halves() -> None:
    def short(op: str, call: int, sequences: int) -> None:
        if sequences > 1:
            raise EngineRefused("out_of_memory", "no room")

    teacher = Teacher(short)
    assert await scores_of(teacher, FOUR, 1.0) == [(-1.0, -1.0)] * 4
    assert teacher.asked == [4, 2, 1, 1, 2, 1, 1]


@pytest.mark.parametrize("kind", ["out_of_memory", "bad_request"])
async def test_what_cannot_be_asked_at_all_is_an_error(kind: str) -> None:
    def refuse(op: str, call: int, sequences: int) -> None:
        raise EngineRefused(kind, "no")

    with pytest.raises(EngineRefused):
        await scores_of(Teacher(refuse), FOUR, 1.0)


@pytest.mark.parametrize("says", [math.nan, -math.inf])
async def test_what_is_no_number_is_an_error(says: float) -> None:
    with pytest.raises(EngineError, match="weights are broken"):
        await scores_of(Teacher(says=says), FOUR, 1.0)


async def test_a_process_that_ended_while_it_loaded_has_another_try() -> None:
    def crash_once(op: str, call: int, sequences: int) -> None:
        if call == 1:
            raise EngineCrashed("it ended")

    teacher = Teacher(crash_once)
    await load(teacher, Path("teacher"))
    assert teacher.asked == [0, 0]


async def test_a_teacher_that_cannot_be_loaded_says_what_to_do() -> None:
    def refuse(op: str, call: int, sequences: int) -> None:
        raise InstallFailed("no weights")

    with pytest.raises(
        InstallFailed, match=r"\[teacher\] directory: teacher cannot be loaded: no weights\n.*\[engine\]"
    ):
        await load(Teacher(refuse), Path("teacher"))
