"""The kit for authors asks tasks with environments as the learner does: made again, and told the earlier turns."""

from __future__ import annotations

import random
from dataclasses import dataclass

from node.tasks.api.environment import Environment
from node.tasks.api.interface import Problem, Spoken
from node.tasks.checks.check_task import try_task


class Counting:
    """Numbers are told until the third; what is random follows from the seed."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.told = dice, 0

    async def step(self, spoken: Spoken) -> str | None:
        self.told += 1
        return str(self.dice.randint(0, 10**9)) if self.told < 3 and spoken.content != "stop" else None

    async def reward(self) -> float:
        return float(self.told)


@dataclass(frozen=True, kw_only=True)
class Sound:
    name: str = "counting"
    levels: int = 1
    fingerprint: str = "counting"

    def problem(self, index: int) -> Problem:
        return Problem(prompt=f"count {2 * index}", answer="on")

    def held_out(self, index: int) -> Problem:
        return Problem(prompt=f"count {2 * index + 1}", answer="on")

    def environment(self, problem: Problem, seed: int) -> Environment:
        return Counting(random.Random(seed))


class Broken(Sound):
    def environment(self, problem: Problem, seed: int) -> Environment:
        return Counting(random.Random())


def faults(task: Sound) -> dict[str, str]:
    """The first fault of each check that fails."""
    report = try_task(task, 4)  # type: ignore[arg-type]  # it has an environment in place of a reward
    return {result.name: result.faults[0] for result in report.results if result.faults}


def test_an_environment_that_follows_from_its_seed() -> None:
    assert set(faults(Sound())) <= {"reference"}, "every answer has the same reward"


def test_an_environment_that_does_not() -> None:
    assert "answers" in faults(Broken())
