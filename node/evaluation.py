"""Held-out prompts asked of published versions, beside training.

What always holds: the learner never waits for an evaluation (a version published while one runs is skipped, but for
the last); the same prompts and seeds are asked every time, so two figures differ by the policy alone; episodes are
played to their end. Greedy accuracy and accuracy of one sample at the training temperature are both mean rewards over
the held-out prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from learner.environment import Ended, Reply, Said
from learner.ledger import Ledger
from node.engine.port import EngineCrashed, EngineError, GenerationRequest, InstalledVersion, PolicyEngine
from node.events import EventLog
from node.playing import play
from protocol.manifest import SignedManifest
from swarm.store import ChunkStore, StoreError

EVALUATION_SEED = 1 << 40
"""Held-out prompt i is sampled with this seed plus i: any fixed numbers do that no lease is likely to use."""


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """One held-out prompt: token ids, the reward of a completion's token ids, and the name of its task.

    `reply`: what comes back to what was said in a task of several turns; None: the completion is all.
    """

    prompt: tuple[int, ...]
    reward: Callable[[tuple[int, ...]], float]
    task: str = ""
    reply: Callable[[Said, int], Reply] | None = None

    def answer(self, said: Said, transcript: int) -> Reply:
        """The same for any task."""
        return Ended(reward=self.reward(said[-1])) if self.reply is None else self.reply(said, transcript)


@dataclass(frozen=True, kw_only=True)
class EvaluationTerms:
    """How completions are drawn. `every_versions` 0: only the first and the last published version."""

    every_versions: int
    temperature: float
    max_new_tokens: int
    stop_ids: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Mean rewards over the held-out prompts."""

    greedy: float
    sampled: float


async def evaluate(engine: PolicyEngine, prompts: Sequence[HeldOut], terms: EvaluationTerms) -> Scores:
    """Score what is installed in `engine`."""
    rewards = await play(
        engine,
        [(_request(i, held, terms, greedy=g), held.answer) for g in (True, False) for i, held in enumerate(prompts)],
    )
    count = len(prompts)
    return Scores(greedy=sum(rewards[:count]) / count, sampled=sum(rewards[count:]) / count)


@dataclass(kw_only=True)
class Evaluation:
    """See the module's paragraph."""

    engine: PolicyEngine
    store: ChunkStore
    ledger: Ledger
    prompts: Sequence[HeldOut]
    terms: EvaluationTerms
    now_ms: Callable[[], int]
    events: EventLog
    latest: Scores | None = None
    _published: int = 0
    _one: trio.Lock = field(default_factory=trio.Lock)

    def is_due(self) -> bool:
        """Whether the version that was just published is one to evaluate; counts it."""
        self._published += 1
        every = self.terms.every_versions
        return self._published == 1 or (every > 0 and (self._published - 1) % every == 0 and not self._one.locked())

    async def run(self, signed: SignedManifest) -> None:
        """Evaluate one version, which must be in the store when this begins, and write the result."""
        at_ms = self.now_ms()
        try:
            with self.store.pinned(signed.hash):
                async with self._one:
                    scores = await self._scores(signed)
        except (EngineError, StoreError) as error:
            self.events.emit("evaluation_failed", version=str(signed.version), reason=str(error).splitlines()[0])
            return
        self.latest = scores
        await trio.to_thread.run_sync(
            lambda: self.ledger.evaluated(
                signed.version, at_ms, prompts=len(self.prompts), greedy=scores.greedy, sampled=scores.sampled
            )
        )
        self.events.emit(
            "evaluated", version=str(signed.version), greedy=round(scores.greedy, 4), sampled=round(scores.sampled, 4)
        )

    async def _scores(self, signed: SignedManifest) -> Scores:
        """Once more when the engine crashed under us, since by then it was restarted."""
        try:
            return await self._score(signed)
        except EngineCrashed as crash:
            self.events.emit("engine_crashed", reason=str(crash).splitlines()[0])
            return await self._score(signed)

    async def _score(self, signed: SignedManifest) -> Scores:
        version = InstalledVersion(name=signed.version, manifest=signed.hash)
        await self.engine.install(version, self.store.directory(signed.hash))
        return await evaluate(self.engine, self.prompts, self.terms)


def _request(index: int, held: HeldOut, terms: EvaluationTerms, *, greedy: bool) -> GenerationRequest:
    return GenerationRequest(
        prompt=held.prompt,
        seed=EVALUATION_SEED + index,
        temperature=terms.temperature,
        max_new_tokens=terms.max_new_tokens,
        stop_ids=terms.stop_ids,
        greedy=greedy,
    )
