"""Measure how many held-out prompts a version answers in the right form, and how many correctly.

Each prompt is evaluated as in a run: once greedily, and sampled at the training temperature. The range is about the
sampled answers, because reinforcement learning learns from those.

An answer has the right form if it ended by itself, is not blank, and the task says that it can be read
(`node.tasks.gate.Gate.in_form`). If a task gives a reward called "format", the form is that reward.

Invariants:

- Prompts and seeds are the same at every measurement, so two scores differ only by the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isnan, nan
from pathlib import Path

import trio

from learner.monitoring.eval_scores import Scores
from learner.rollouts.environment import Ended, Reply
from learner.rollouts.reward_parts import RewardPart
from node.commands.warmup.options import ACCURACY, FORMAT
from node.engine.interface import InstalledVersion, PolicyEngine
from node.learner_role.training.evaluation import EvaluationTerms, evaluate
from node.runtime.errors import UsageError
from node.tasks.gate import Place
from node.tasks.held_out import AskHeldOut, HeldOutQuestion
from node.tasks.task_suite import TaskSuite
from protocol.core.ids import ManifestHash, PolicyVersion


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Scores of one version. `by` names the score that the range is about, and `reached` is its value."""

    by: str
    scores: Scores

    @property
    def reached(self) -> float:
        """Return the score that the range is about. Raises UsageError if no task gives it."""
        if self.by == ACCURACY:
            return self.accuracy
        if self.by not in self.scores.named:
            known = ", ".join([FORMAT, ACCURACY, *(name for name in self.scores.named if name != FORMAT)])
            raise UsageError(f"--by {self.by}: no task gives a reward of that name. Known are: {known}.")
        return self.scores.named[self.by][1]

    @property
    def accuracy(self) -> float:
        """Return the fraction of sampled answers that are completely right."""
        return self.scores.pass_at.get(1, nan)

    @property
    def text(self) -> str:
        """Return the scores for people."""
        greedy, sampled = self.scores.named.get(FORMAT, (nan, nan))
        parts = [f"{sampled:.1%} of sampled answers in the right form ({greedy:.1%} of greedy ones)"]
        if not isnan(self.accuracy):
            parts.append(f"{self.accuracy:.1%} right")
        if self.by not in (FORMAT, ACCURACY):
            parts.append(f"{self.by} {self.reached:.3f}")
        return ", ".join(parts)

    @property
    def figures(self) -> Mapping[str, float | str | None]:
        """Return the scores for programs."""
        greedy, sampled = self.scores.named.get(FORMAT, (nan, nan))
        found = {"format": sampled, "greedy_format": greedy, "accuracy": self.accuracy, "score": self.reached}
        return {"by": self.by, **{name: None if isnan(value) else round(value, 6) for name, value in found.items()}}


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """Evaluates held-out prompts with an engine, tasks, rewards (`ask`), and sampling settings."""

    engine: PolicyEngine
    suite: TaskSuite
    ask: AskHeldOut
    terms: EvaluationTerms
    by: str

    async def score(self, directory: Path, number: int) -> Judged:
        """Score the model in `directory` at measurement `number`. Raises EngineError, NothingSaid, RunError."""
        version = InstalledVersion(name=PolicyVersion(0, number), manifest=ManifestHash(number.to_bytes(32, "big")))
        await self.engine.install(version, directory)
        scores = await evaluate(self.engine, self.suite.held_out, self.terms, self._asked)
        await self.engine.release()  # a trainer on the same GPU needs the memory
        return Judged(by=self.by, scores=scores)

    async def _asked(self, questions: Sequence[HeldOutQuestion]) -> Sequence[Reply]:
        """Return the replies. If an episode is over, the form of the answer is among its rewards."""
        replies = await self.ask(questions)
        return await trio.to_thread.run_sync(partial(_with_form, self.suite, questions, replies))


def _with_form(suite: TaskSuite, questions: Sequence[HeldOutQuestion], replies: Sequence[Reply]) -> list[Reply]:
    return [
        replace(reply, parts=(*reply.parts, _form(suite, question, reply)))
        if isinstance(reply, Ended) and all(part.name != FORMAT for part in reply.parts)
        else reply
        for question, reply in zip(questions, replies, strict=True)
    ]


def _form(suite: TaskSuite, question: HeldOutQuestion, end: Ended) -> RewardPart:
    held, said, *_ = question
    encoded, place = suite.tasks[held.task], Place(index=held.index, held_out=True)
    completion = encoded.codec.completion(said[-1])
    has_form = not end.cut_off and encoded.gate.in_form(place, encoded.gate.problem(place), completion)
    return RewardPart(name=FORMAT, value=float(has_form), weight=0.0)
