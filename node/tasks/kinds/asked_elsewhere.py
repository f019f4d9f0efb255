"""Tasks of a data file whose answers are judged elsewhere: by a language model (`match=judge`), or by a service of the
operator's (`match=service`).

Invariants:
- A row needs no reference answer.
- An answer that does not end with a stop id within its budget is worth 0 to a judge, which is not asked; a service is
  told, and decides.
- What is asked is not part of the fingerprint: another judge makes other rewards, and the same problems.
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
"""The values of `match` that mean this."""


@dataclass(frozen=True, kw_only=True)
class RowProblem(Problem):
    """A problem that knows its row, which a service may know it by."""

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
    """`match=judge`."""

    judge: Judge
    match: Literal["judge"] = "judge"

    def require(self) -> None:
        """Raises TaskError where the judge's key is not in the environment."""
        self.judge.require()

    async def try_services(self, problem: Problem) -> None:
        """Raises TaskError where the judge gives no verdict."""
        await self.judge.try_out()

    async def reward(self, problem: Problem, completion: Completion) -> float | CannotSay:
        return await self.judge.reward(problem, completion) if completion.finished else 0.0


@dataclass(frozen=True, kw_only=True)
class ServedTask(_Elsewhere):
    """`match=service`."""

    service: RewardService
    match: Literal["service"] = "service"

    @property
    def reward_weights(self) -> Mapping[str, float]:
        return self.service.weights

    def require(self) -> None:
        """Raises TaskError where the service's key is not in the environment."""
        self.service.require()

    async def try_services(self, problem: Problem) -> None:
        """Raises TaskError where the service gives no reward."""
        await self.service.try_out(problem)

    async def reward(
        self, problem: Problem, completion: Completion
    ) -> float | Mapping[str, float | CannotSay] | CannotSay:
        index = problem.row if isinstance(problem, RowProblem) else None
        return await self.service.reward(problem, completion, index=index)


def judge_of(arguments: TaskArguments) -> Judge:
    """The judge of swarm.toml. Raises TaskError."""
    terms = terms_of(JudgeTerms, "judge", arguments.services.get("judge"), wanted_by="match=judge")
    return Judge.of(terms)


def service_of(arguments: TaskArguments) -> RewardService:
    """The service of swarm.toml. Raises TaskError."""
    given = arguments.services.get("reward_service")
    return RewardService.of(terms_of(RewardServiceTerms, "reward_service", given, wanted_by="match=service"))
