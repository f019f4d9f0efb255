"""Ask a teacher for scores: in halves where memory is short; only numbers are accepted."""

from __future__ import annotations

import math

import pytest

from node.engine.interface import EngineError, EngineRefused
from node.engine.teacher_scores import scores_of
from tests.support.teachers import Teacher

FOUR = [((1,), (2, 3))] * 4


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
