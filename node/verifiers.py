"""Who says what completions are worth: the node itself where a task is cheap, verifiers' processes for all others.

What always holds: the loops of the node never wait for a task's code on their own thread; whatever a task does, each
question gets a reply. One that nobody could answer ends its episode, with a reward of 0 or as void as the operator has
chosen (`[verifiers] on_failure`), is an event, and is told in words now and then; only a task that fails at everything
ends the run. What may wait is bounded by who asks: the deliveries that are under way, and an evaluation.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from learner.environment import Ended, Question, Reply, Said
from node.config import VerifiersSection
from node.engines import child_events
from node.errors import RunError
from node.evaluation import HeldOut, HeldOutQuestion
from node.events import EventLog
from node.schooling import Schooling
from node.tasks.encoded import Replying
from node.tasks.judging import Asked, Judgement, is_cheap, require
from node.verifier_pool import VERIFIER, Failure, PoolTerms, VerifierPool, open_pool
from swarm.causes import first_cause

MAX_USUAL = 8
"""Verifiers on this machine unless the file says how many: half of its cores, since rollouts may be made here, too."""

FAILED_IN_A_ROW = 256
"""So many questions without one answer are no strange completions: the task is broken, and the run would learn that."""


@dataclass(frozen=True, kw_only=True)
class _Place:
    """What is asked: problem `index` of the task called `title`."""

    title: str
    index: int
    held_out: bool
    said: Said
    transcript: int


@dataclass(kw_only=True)
class Verifiers:
    """See the module's paragraph. Cheap tasks can be asked at once, others once `opened` is entered."""

    schooling: Schooling
    section: VerifiersSection
    events: EventLog
    failures: int = 0
    _in_a_row: int = 0
    _pool: VerifierPool | None = None
    _there: trio.Event = field(default_factory=trio.Event)
    _thread: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))
    """Deliveries ask all at once: on a thread each they would leave the node's own little of the interpreter."""

    @property
    def pooled(self) -> list[str]:
        """Titles of the tasks that verifiers are asked for."""
        if not _commands(self.section):
            return []
        return [title for title, encoded in self.schooling.tasks.items() if not is_cheap(encoded.task)]

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Start the verifiers, if any task needs them, and end them with the scope. Raises RunError."""
        if not self.pooled:
            self._there.set()
            yield
            return
        terms = PoolTerms(
            tasks={title: self.schooling.origins[title] for title in self.pooled},
            fingerprints={title: self.schooling.tasks[title].task.fingerprint for title in self.pooled},
            timeout_s=self.section.timeout_s,
            memory_gb=self.section.memory_gb,
        )
        async with open_pool(_commands(self.section), terms, lambda name: child_events(self.events, name)) as pool:
            self._pool = pool
            self._there.set()
            yield

    async def replies(self, questions: Sequence[Question]) -> list[Reply]:
        """What comes back in training problems, in the order of the questions. Raises RunError, see FAILED_IN_A_ROW."""
        places = []
        for one in questions:
            index, title = self.schooling.place(one.index)
            places.append(_Place(title=title, index=index, held_out=False, said=one.said, transcript=one.transcript))
        return await self._all(places, self._thread)

    async def held_out_replies(self, questions: Sequence[HeldOutQuestion]) -> list[Reply]:
        """The same in held-out problems."""
        return await self._all([_held_out(held, said, transcript) for held, said, transcript in questions])

    def environment(self, index: int, said: Said, transcript: int) -> Reply:
        """The same for one training problem, asked from a worker thread, which waits."""
        [reply] = trio.from_thread.run(self.replies, [Question(index=index, said=said, transcript=transcript)])
        return reply

    async def _all(self, places: Sequence[_Place], thread: trio.CapacityLimiter | None = None) -> list[Reply]:
        pooled = set(self.pooled)
        here = [number for number, place in enumerate(places) if place.title not in pooled]
        there = [number for number, place in enumerate(places) if place.title in pooled]
        found: dict[int, Reply] = {}
        if here:
            replies = await trio.to_thread.run_sync(
                lambda: [self._answered_here(places[number]) for number in here], limiter=thread
            )
            found.update(zip(here, replies, strict=True))
        if there:
            await self._there.wait()
            assert self._pool is not None
            waiting = iter(there)

            async def ask() -> None:
                for number in waiting:
                    found[number] = await self._asked(places[number])

            with first_cause():
                async with trio.open_nursery() as nursery:
                    for _ in range(min(len(there), self._pool.size)):
                        nursery.start_soon(ask)
        return [found[number] for number in range(len(places))]

    def _answered_here(self, place: _Place) -> Reply:
        encoded, limits = self.schooling.tasks[place.title], self.schooling.limits
        reply = encoded.held_out_reply if place.held_out else encoded.reply
        return reply(place.index, place.said, place.transcript, limits)

    async def _asked(self, place: _Place) -> Reply:
        assert self._pool is not None
        replying = self.schooling.tasks[place.title].replying(
            place.index, place.said, place.transcript, self.schooling.limits, held_out=place.held_out
        )
        # Tokens to text and back take their time.
        step = await trio.to_thread.run_sync(_advanced, replying, None, limiter=self._thread)
        while isinstance(step, Asked):
            judgement = await self._pool.judge(place.title, step)
            if isinstance(judgement, Failure):
                return self._failed(place, judgement)
            self._in_a_row = 0
            step = await trio.to_thread.run_sync(_advanced, replying, judgement, limiter=self._thread)
        return step

    def _failed(self, place: _Place, failure: Failure) -> Reply:
        """Raises RunError when everything fails."""
        self.failures += 1
        self._in_a_row += 1
        void = self.section.on_failure == "drop"
        self.events.emit(
            "reward_failed",
            task=place.title,
            index=place.index,
            held_out=place.held_out,
            how=failure.how,
            detail=failure.detail,
        )
        if self._in_a_row >= FAILED_IN_A_ROW:
            raise RunError(
                f"The last {FAILED_IN_A_ROW} rewards could not be computed, the newest since {failure.detail}. Mend "
                "the task or raise [verifiers] timeout_s, then start again: nothing that was acknowledged is lost."
            )
        if self.failures & (self.failures - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...
            self.events.emit(
                "trouble",
                text=f"{self.failures} rewards could not be computed; the newest, of problem {place.index} of task "
                f"{place.title}: {failure.detail}. " + ("Its group is dropped." if void else "It counts as 0."),
            )
        return Ended(reward=0.0, failure=f"{failure.how}: {failure.detail}", void=void)


def require_here(schooling: Schooling, section: VerifiersSection) -> None:
    """Raises TaskError when a task needs something for its rewards that is not here, unless only other machines compute
    them."""
    if section.workers == 0 and section.machine:
        return
    for encoded in schooling.tasks.values():
        require(encoded.task)


def _held_out(held: HeldOut, said: Said, transcript: int) -> _Place:
    return _Place(title=held.task, index=held.index, held_out=True, said=said, transcript=transcript)


def _advanced(replying: Replying, judgement: Judgement) -> Asked | Reply:
    """What to ask next, or the reply."""
    try:
        return replying.send(judgement)
    except StopIteration as end:
        reply: Reply = end.value
        return reply


def _commands(section: VerifiersSection) -> list[tuple[str, Sequence[str]]]:
    """(name, command) of each verifier."""
    here = min(MAX_USUAL, max(1, (os.cpu_count() or 2) // 2)) if section.workers is None else section.workers
    commands: list[tuple[str, Sequence[str]]] = [(f"verifier {number}", VERIFIER) for number in range(1, here + 1)]
    for machine in section.machine:
        for _ in range(machine.workers):
            commands.append((f"verifier {len(commands) + 1} ({shlex.join(machine.command)})", machine.command))
    return commands
