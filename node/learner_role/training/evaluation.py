"""Evaluate published versions on held-out prompts, beside training.

Each prompt is completed once greedily, and `samples` times at the training temperature (see
`learner.monitoring.eval_scores`).

Invariants:

- The learner never waits for an evaluation. A version that is published during one is skipped, and an event says so.
  Only the last version is never skipped.
- The GPU memory of an evaluation's batches is released when it ends for any reason, since training may need it.
- Every evaluation uses the same prompts and seeds, so two results differ only by the policy.
- Episodes are played to their end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from math import isnan, nan

import trio

from learner.monitoring.eval_scores import Scores, score
from learner.rollouts.environment import Ended
from learner.rollouts.reward_parts import decisive, means
from node.engine.interface import EngineCrashed, EngineError, GenerationRequest, InstalledVersion, PolicyEngine
from node.learner_role.shared.context import Service
from node.learner_role.training.episode_player import play
from node.runtime.errors import RunError
from node.runtime.events import Field
from node.tasks.held_out import AskHeldOut, HeldOut, answer_on_a_thread
from protocol.core.ids import PolicyVersion
from protocol.versions.manifest import SignedManifest
from swarm.store import StoreError

EVALUATION_SEED = 1 << 40
"""The seed of held-out prompt i is this plus i. Any fixed numbers would do that a lease is unlikely to use."""

SAMPLE_STRIDE = 1 << 23
"""Difference between the seeds of two samples of a prompt: larger than the number of held-out prompts can be."""

TOGETHER = 512
"""Most completions that the engine generates at a time, so that a large evaluation needs no more memory."""


@dataclass(frozen=True, kw_only=True)
class EvaluationTerms:
    """How completions are sampled. `every_versions` 0: only the first and the last published version is evaluated."""

    every_versions: int
    temperature: float
    max_new_tokens: int
    stop_ids: frozenset[int]
    samples: int = 1
    ks: tuple[int, ...] = (1,)
    decides: str = ""
    """The named reward that decides whether a completion passes; "": the sum of all."""


class NothingSaid(RunError):
    """Raised if no greedy completion, or no sampled one, has a reward."""


Turn = Callable[[], AbstractAsyncContextManager[None]]
"""A scope with exclusive use of the engine, in which the evaluated version is installed."""


async def evaluate(
    engine: PolicyEngine,
    prompts: Sequence[HeldOut],
    terms: EvaluationTerms,
    ask: AskHeldOut = answer_on_a_thread,
    turn: Turn = nullcontext,
) -> Scores:
    """Score the version installed in `engine` on at least one prompt. `ask` returns rewards.

    Each `turn` generates TOGETHER completions. Between two turns, others may use the engine. Raises NothingSaid.
    """
    starts = [(_request(i, held, terms), held) for i, held in enumerate(prompts)]
    for sample in range(terms.samples):
        starts += [(_request(i, held, terms, sample), held) for i, held in enumerate(prompts)]
    ends: list[Ended] = []
    for first in range(0, len(starts), TOGETHER):
        async with turn():
            ends += await play(engine, starts[first : first + TOGETHER], ask)
    count, rewards = len(prompts), [nan if end.void else end.reward for end in ends]
    sampled = [rewards[count + i :: count] for i in range(count)]
    values = [decisive(reward, end.parts, terms.decides) for reward, end in zip(rewards, ends, strict=True)]
    decided = [nan if one is None else one for one in values]
    scores = score(
        rewards[:count],
        sampled,
        [held.task for held in prompts],
        terms.ks,
        [decided[count + i :: count] for i in range(count)],
    )
    if isnan(scores.greedy) or isnan(scores.sampled):
        why = next((end.failure for end in ends if end.void), "")
        raise NothingSaid(f"the completions of {count} held-out prompts have no rewards: {why}")
    greedy, drawn = (means(end.parts for end in part) for part in (ends[:count], ends[count:]))
    return replace(scores, named={name: (greedy.get(name, nan), drawn.get(name, nan)) for name in {**greedy, **drawn}})


@dataclass(kw_only=True, eq=False)
class Evaluation(Service):
    """Evaluates versions on the held-out `prompts`."""

    engine: PolicyEngine
    prompts: Sequence[HeldOut]
    terms: EvaluationTerms
    ask: AskHeldOut = answer_on_a_thread
    lock: trio.Lock = field(default_factory=trio.Lock)
    """Held while the engine is in use. Others that share it wait for at most TOGETHER completions."""
    latest: Scores | None = None
    _published: int = 0
    _one: trio.Lock = field(default_factory=trio.Lock)

    def is_due(self, version: PolicyVersion, *, last: bool = False) -> bool:
        """Count a version that was just published, and return whether to evaluate it."""
        self._published += 1
        changed = self.state.live.every_versions
        every = self.terms.every_versions if changed is None else changed
        if self._published == 1 or last:
            return True
        if every == 0 or (self._published - 1) % every:
            return False
        if self._one.locked():
            self.events.emit(
                "evaluation_skipped", version=str(version), reason="the evaluation before it is not over yet"
            )
            return False
        return True

    async def evaluate(self, signed: SignedManifest) -> None:
        """Evaluate one version, which must be in the store when this begins, and write the result."""
        self.state.evaluating[signed.version.version] += 1
        try:
            await self._evaluate(signed)
        finally:
            self.state.evaluating[signed.version.version] -= 1

    async def _evaluate(self, signed: SignedManifest) -> None:
        at_ms = self.now_ms()
        try:
            with self.context.store.hold(signed.hash):
                async with self._one:
                    try:
                        scores = await self._scores(signed)
                    finally:
                        with suppress(EngineError):  # an engine whose process ended holds no memory
                            await self.engine.release()
        except (EngineError, StoreError, NothingSaid) as error:
            self.events.emit("evaluation_failed", version=str(signed.version), reason=str(error).splitlines()[0])
            return
        self.latest = scores
        await trio.to_thread.run_sync(
            lambda: self.ledger.training.evaluated(
                signed.version,
                at_ms,
                prompts=len(self.prompts),
                greedy=scores.greedy,
                sampled=scores.sampled,
                more=scores.rows(),
            )
        )
        for task, one in scores.tasks.items():
            self.events.emit("evaluated_task", version=str(signed.version), task=task, **_figures(one))
        for name, (greedy, sampled) in scores.named.items():
            one = Scores(greedy=greedy, sampled=sampled)
            self.events.emit("evaluated_reward", version=str(signed.version), name=name, **_figures(one))
        completions = len(self.prompts) * scores.samples
        self.events.emit("evaluated", version=str(signed.version), completions=completions, **_figures(scores))

    async def _scores(self, signed: SignedManifest) -> Scores:
        """Score the version. If the engine crashes, score it once more, since it was restarted by then."""
        try:
            return await self._score(signed)
        except EngineCrashed as crash:
            self.events.emit("engine_crashed", reason=str(crash).splitlines()[0])
            return await self._score(signed)

    async def _score(self, signed: SignedManifest) -> Scores:
        version = InstalledVersion(name=signed.version, manifest=signed.hash)

        @asynccontextmanager
        async def turn() -> AsyncIterator[None]:
            async with self.lock:
                if self.engine.installed != version:
                    await self.engine.install(version, self.context.store.directory(signed.hash))
                yield

        return await evaluate(self.engine, self.prompts, self.terms, self.ask, turn)


def _figures(scores: Scores) -> dict[str, Field]:
    passes = {f"pass_{k}": round(value, 4) for k, value in scores.pass_at.items()}
    means_of = {"greedy": scores.greedy, "sampled": scores.sampled}
    return {**{name: round(value, 4) for name, value in means_of.items() if not isnan(value)}, **passes}


def _request(index: int, held: HeldOut, terms: EvaluationTerms, sample: int | None = None) -> GenerationRequest:
    """Return the greedy request, or that for sample number `sample`."""
    return GenerationRequest(
        prompt=held.prompt,
        seed=EVALUATION_SEED + index + SAMPLE_STRIDE * (sample or 0),
        temperature=terms.temperature,
        max_new_tokens=terms.max_new_tokens,
        stop_ids=terms.stop_ids,
        greedy=sample is None,
    )
