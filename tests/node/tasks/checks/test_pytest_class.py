"""The checks as tests of pytest: a class for a task that passes, and one test that fails for each broken promise."""

from __future__ import annotations

from dataclasses import dataclass
from unittest import SkipTest

import pytest

from node.tasks.api.interface import Completion, Problem
from node.tasks.checks.check_task import NAMES
from node.tasks.checks.pytest_class import TaskChecks
from node.tasks.kinds.generated import REVERSE
from node.tasks.kinds.guess_and_lookup import LOOKUP


class TestReverse(TaskChecks):
    task = REVERSE


class TestLookup(TaskChecks):
    task = LOOKUP
    indexes = 8


@dataclass(frozen=True)
class Broken:
    """Rewards are texts."""

    name: str = "broken"
    levels: int = 1
    fingerprint: str = "broken"

    def problem(self, index: int) -> Problem:
        return Problem(prompt=f"say {2 * index}", answer="a")

    def held_out(self, index: int) -> Problem:
        return Problem(prompt=f"say {2 * index + 1}", answer="a")

    def reward(self, problem: Problem, completion: Completion) -> float:
        return "1.0"  # type: ignore[return-value]


class OfBroken(TaskChecks):
    task = Broken()


def names_of(kind: type[TaskChecks]) -> list[str]:
    return [name for name in dir(kind) if name.startswith("test_")]


def test_there_is_a_test_for_each_check(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[str] = []
    monkeypatch.setattr(TaskChecks, "_hold", lambda _, name: held.append(name))
    for name in names_of(TaskChecks):
        getattr(OfBroken(), name)()
    assert sorted(held) == sorted(NAMES)


def test_each_test_fails_or_is_skipped_by_itself() -> None:
    ended: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for name in names_of(OfBroken):
        try:
            getattr(OfBroken(), name)()
        except AssertionError:
            ended["failed"].append(name)
        except SkipTest:
            ended["skipped"].append(name)
        else:
            ended["passed"].append(name)
    assert ended["failed"] == [
        "test_every_answer_is_worth_a_number",
        "test_the_reference_answer_is_worth_most",
        "test_the_same_answer_is_worth_the_same_again",
    ]
    assert len(ended["skipped"]) == 5, "three of turns, another process, no limits"
    assert len(ended["passed"]) == 5
