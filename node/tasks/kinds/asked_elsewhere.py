"""Have completions for a data file's problems rewarded elsewhere, by a judge or by a service.

A judge (`match=judge`) is a language model. A service (`match=service`) is the operator's own HTTP service.

Invariants:

- A row needs no reference answer.
- A completion that does not end with a stop id within its budget gets 0 with a judge, which is not asked. A service is
  asked, and decides.
- Judge and service are not part of the fingerprint: another judge gives other rewards to the same problems.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from node.tasks.api.interface import CannotSay, Completion, Problem, TaskArguments
from node.tasks.kinds.problem_files import ProblemFile
from node.tasks.services.judge import Judge, JudgeTerms
from node.tasks.services.reward_service import RewardService, RewardServiceTerms
from node.tasks.services.terms import terms_of

ELSEWHERE = ("judge", "service")
"""The values of `match` for these tasks."""


@dataclass(frozen=True, kw_only=True)
class RowProblem(Problem):
    """A problem with the number of its row, by which a service may know it."""

    row: int


@dataclass(frozen=True, kw_only=True)
class _Elsewhere(ProblemFile):
    name: str
    match: str
    levels: int = 1

    @property
    def fingerprint(self) -> str:
        return f"{self.name}/{self.digest}/{self.match}/{len(self.kept_back)}/{self.trained}{self.names}"


@dataclass(frozen=True, kw_only=True)
class JudgedTask(_Elsewhere):
    """A task with `match=judge`."""

    judge: Judge
    match: Literal["judge"] = "judge"

    def require(self) -> None:
        """Raise TaskError if the judge's key is not in the environment."""
        self.judge.require()

    async def try_services(self, problem: Problem) -> None:
        """Raise TaskError if the judge gives no verdict."""
        await self.judge.try_out()

    async def reward(self, problem: Problem, completion: Completion) -> float | CannotSay:
        return await self.judge.reward(problem, completion) if completion.finished else 0.0


@dataclass(frozen=True, kw_only=True)
class ServedTask(_Elsewhere):
    """A task with `match=service`."""

    service: RewardService
    match: Literal["service"] = "service"

    @property
    def reward_weights(self) -> Mapping[str, float]:
        return self.service.weights

    def require(self) -> None:
        """Raise TaskError if the service's key is not in the environment."""
        self.service.require()

    async def try_services(self, problem: Problem) -> None:
        """Raise TaskError if the service gives no reward."""
        await self.service.try_out(problem)

    async def reward(
        self, problem: Problem, completion: Completion
    ) -> float | Mapping[str, float | CannotSay] | CannotSay:
        index = problem.row if isinstance(problem, RowProblem) else None
        return await self.service.reward(problem, completion, index=index)


def judge_of(arguments: TaskArguments) -> Judge:
    """Return the judge that swarm.toml names. Raises TaskError."""
    terms = terms_of(JudgeTerms, "judge", arguments.services.get("judge"), wanted_by="match=judge")
    return Judge.of(terms)


def service_of(arguments: TaskArguments) -> RewardService:
    """Return the service that swarm.toml names. Raises TaskError."""
    given = arguments.services.get("reward_service")
    return RewardService.of(terms_of(RewardServiceTerms, "reward_service", given, wanted_by="match=service"))
