"""Load the teacher of a node: again after a crash, or with advice where it cannot be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.engine.interface import EngineCrashed, InstallFailed
from node.rollout_role.teaching.teacher_engine import load
from tests.support.teachers import Teacher


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
