"""Write prompts and compute rewards: cheap tasks in the node's own process, all others in verifier processes.

A task's code may be slow, hang or raise errors. The node must go on in each case.

Invariants:

- The node's loops never wait for a task's code on their own thread.
- Each question gets a reply, no matter what the task does.
- A question without an answer ends its episode, with a reward of 0 or as void (`[verifiers] on_failure`). Each such
  failure is an event, and the operator is told of the 1st, 2nd, 4th, 8th, ...
- If all first completions of a task fail, the operator is told once. The run ends only if everything fails.
- The callers bound the number of waiting questions: the deliveries that are under way, an evaluation, and the prompts
  that are prepared (`node.learner_role.scheduling.prompt_writer`).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import perf_counter

import trio

from learner.rollouts.environment import Ended, Question, Reply, Said
from node.config.swarm_config import VerifiersSection
from node.processes.event_log import child_events
from node.runtime.batched_calls import BatchedCalls
from node.runtime.errors import RunError, naming
from node.runtime.events import EventLog
from node.runtime.formatting import counted
from node.tasks.api.interface import Problem, TaskError
from node.tasks.first_reward import require_reward, require_services
from node.tasks.gate import NobodyCanSay, Place
from node.tasks.grading import AnsweredOtherwise, Asked, Judgement
from node.tasks.held_out import HeldOutQuestion
from node.tasks.sandbox.confined_library import close_all
from node.tasks.services.remarks import Remark, take_remarks
from node.tasks.task_suite import TaskSuite, Written
from node.tasks.tokenized_task import Replying
from node.verifiers.pool import VERIFIER, Failure, PoolTerms, VerifierPool, open_pool
from node.verifiers.remarks import ServiceNews
from swarm.transport.error_groups import first_cause

MAX_USUAL = 8
"""Most verifiers on this machine if the configuration gives no number. The number is half of the cores, because
rollouts may be generated here, too."""

FAILED_IN_A_ROW = 256
"""Questions in a row without an answer that end the run. Strange completions cannot explain so many: the task is
broken, and the policy would learn from its failures."""

NEVER_RIGHT = 16
"""First questions of a task without an answer after which the operator is told that the task fails: two groups of
eight. Chance and odd completions explain only one or two failures."""

UNSAID_IN_A_ROW = 64
"""Completions of a task in a row without a reward (CANNOT_SAY) after which the operator is told: eight groups of eight.
None of them is a failure, but a run that drops all its groups learns nothing."""

TURN_S = 0.005
"""Seconds after which the finished answers of a batch are sent. Answers of one batch wait for each other."""

MOST_TOGETHER = 64
"""Most deliveries that are answered in one batch: twice as many as are under way at a time."""

MAX_POSED = 256
"""Problems that are kept beside their prompts: enough for the episodes that are under way. An answer between two turns
goes through the same chat template, and needs the problem again."""


@dataclass(frozen=True, kw_only=True)
class _Spot:
    """One question: the problem `index` of the task called `title`, and what was said."""

    title: str
    index: int
    held_out: bool
    said: Said
    transcript: int
    digests: tuple[str, ...] = ()
    read: tuple[int, ...] | None = None


_Step = Asked | Place | Reply | Failure


@dataclass(frozen=True, kw_only=True)
class _Move:
    """A reply that is being computed, the answer to send to it, and its problem if that is known.

    The reply asks for no other problem than that one.
    """

    replying: Replying
    answer: Judgement | Problem = None
    problem: Problem | None = None

    def made(self) -> _Step:
        """Return the next question to ask, or the reply."""
        try:
            step = self.replying.send(self.answer)
            while isinstance(step, Place) and self.problem is not None:
                step = self.replying.send(self.problem)
            return step
        except StopIteration as end:
            reply: Reply = end.value
            return reply
        except TaskError as error:
            return _failure(error)


_Answer = Callable[[Sequence[_Spot]], Awaitable[list[Reply | Failure]]]


@dataclass(kw_only=True)
class Verifiers:
    """Answers questions about tasks. Cheap tasks can be asked at once, others once `open` is entered."""

    suite: TaskSuite
    section: VerifiersSection
    events: EventLog
    failures: int = 0
    _in_a_row: int = 0
    _unwritten: int = 0
    """Prompts in a row that no verifier could write."""
    _never: dict[str, int] = field(default_factory=dict)
    """By task: questions without an answer while it has answered none. -1: it has, or the operator was told."""
    _unsaid: dict[str, int] = field(default_factory=dict)
    """By task: completions in a row without a reward (CANNOT_SAY)."""
    _posed: dict[tuple[str, Place], Problem] = field(default_factory=dict)
    _news: ServiceNews = field(default_factory=ServiceNews)
    _pool: VerifierPool | None = None
    _there: trio.Event = field(default_factory=trio.Event)
    _answer: BatchedCalls[Sequence[_Spot], list[Reply | Failure]] = field(init=False)
    """Questions of deliveries about cheap tasks. Many come at once, and a call of a thread costs more than an
    answer."""
    _moves: BatchedCalls[_Move, _Step] = field(init=False)
    """Conversions between tokens and text for questions to verifiers. A thread call for each would delay the loop."""
    _desk: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))
    """Limits the writing of prompts to one thread, so that a slow task delays no reward."""

    def __post_init__(self) -> None:
        self._answer = BatchedCalls(self._answered_together, most=MOST_TOGETHER)
        self._moves = BatchedCalls(_made_together, most=MOST_TOGETHER)

    @property
    def pooled(self) -> list[str]:
        """Return the titles of the tasks that run in verifiers."""
        if not _commands(self.section):
            return []
        return [title for title, encoded in self.suite.tasks.items() if not encoded.gate.is_cheap]

    @property
    def writers(self) -> int:
        """Return how many prompts are written at a time: half as many as there are verifiers, so that rewards, for
        which peers wait, soon find a free one."""
        return max(1, len(_commands(self.section)) // 2)

    def is_pooled(self, index: int) -> bool:
        """Return whether the task of the training problem `index` runs in verifiers."""
        _, title = self.suite.place(index)
        return not self.suite.tasks[title].gate.is_cheap and bool(_commands(self.section))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Start the verifiers, if a task needs them, and end them with the scope. Raises RunError."""
        if not self.pooled:
            self._there.set()
            yield
            return
        terms = PoolTerms(
            tasks={title: self.suite.origins[title] for title in self.pooled},
            fingerprints={
                part.name: part.fingerprint for part in self.suite.curriculum.parts if part.name in self.pooled
            },
            timeout_s=self.section.timeout_s,
            memory_gb=self.section.memory_gb,
            awaited=frozenset(title for title in self.pooled if self.suite.tasks[title].gate.has_async_reward),
            played=frozenset(title for title in self.pooled if self.suite.tasks[title].gate.has_environments),
            environments=self.section.environments,
            idle_s=self.section.environment_idle_s,
            at_once=self.section.episodes_at_once,
        )
        async with open_pool(_commands(self.section), terms, lambda name: child_events(self.events, name)) as pool:
            self._pool = pool
            pool.on_remark = self._heard
            self._there.set()
            yield

    async def replies(self, questions: Sequence[Question]) -> list[Reply]:
        """Return the replies for training problems, in the order of the questions.

        Raises RunError, see FAILED_IN_A_ROW.
        """
        places = []
        for one in questions:
            index, title = self.suite.place(one.index)
            places.append(
                _Spot(
                    title=title,
                    index=index,
                    held_out=False,
                    said=one.said,
                    transcript=one.transcript,
                    digests=one.digests,
                    read=one.read,
                )
            )
        return await self._all(places, self._answer)

    async def held_out_replies(self, questions: Sequence[HeldOutQuestion]) -> list[Reply]:
        """Return the replies for held-out problems, in the order of the questions.

        Raises RunError, see FAILED_IN_A_ROW.
        """
        return await self._all(
            [
                _Spot(
                    title=held.task,
                    index=held.index,
                    held_out=True,
                    said=said,
                    transcript=transcript,
                    digests=digests,
                )
                for held, said, transcript, digests in questions
            ],
            self._answer_apart,
        )

    async def prompts(self, indexes: Sequence[int]) -> list[Written]:
        """Return these training prompts, in order; for one that could not be written, the reason as text.

        Raises RunError after FAILED_IN_A_ROW prompts that could not be written.
        """
        pooled = set(self.pooled)
        found: dict[int, Written] = {}
        if here := [index for index in indexes if self.suite.place(index)[1] not in pooled]:
            written = self.suite.write_prompt
            said = await trio.to_thread.run_sync(lambda: [written(index) for index in here], limiter=self._desk)
            found.update(zip(here, said, strict=True))
        for index in indexes:
            if index not in found:
                found[index] = await self._prompt(index)
        return [found[index] for index in indexes]

    async def _prompt(self, index: int) -> Written:
        inner, title = self.suite.place(index)
        problem = await self._problem(title, Place(index=inner))
        if isinstance(problem, Failure):
            self._unwritten += 1
            if self._unwritten >= FAILED_IN_A_ROW:
                raise _broken("prompts could not be written", problem)
            return f"task {title}: {problem.detail}"
        self._unwritten = 0
        encoded = self.suite.tasks[title]
        try:
            return await trio.to_thread.run_sync(encoded.encode_prompt, problem, limiter=self._desk)
        except TaskError as error:
            return f"task {title}: {error}"

    async def _problem(self, title: str, place: Place) -> Problem | Failure:
        """Return the problem of a pooled task, which a verifier poses."""
        if (known := self._posed.pop((title, place), None)) is None:
            await self._there.wait()
            assert self._pool is not None
            found = await self._pool.pose(title, place)
            if isinstance(found, Failure):
                return found
            known = found
        if self.suite.tasks[title].gate.has_turns:  # else it is never needed again
            self._posed[title, place] = known  # the newest is forgotten last
        if len(self._posed) > MAX_POSED:
            del self._posed[next(iter(self._posed))]
        return known

    def ask_one(self, question: Question) -> Reply:
        """Return the reply for one training problem. A worker thread calls this, and waits for the reply."""
        [reply] = trio.from_thread.run(self.replies, [question])
        return reply

    async def _all(self, places: Sequence[_Spot], answer: _Answer) -> list[Reply]:
        """Return all replies. `answer` answers the questions about tasks that run in no verifier."""
        pooled = set(self.pooled)
        here = [number for number, place in enumerate(places) if place.title not in pooled]
        there = [number for number, place in enumerate(places) if place.title in pooled]
        found: dict[int, Reply] = {}
        if here:
            replies = await answer([places[number] for number in here])
            for heard in take_remarks():
                self._heard(heard)
            found.update(
                (number, self._settled(places[number], reply)) for number, reply in zip(here, replies, strict=True)
            )
        if there:
            await self._there.wait()
            assert self._pool is not None
            waiting = iter(there)

            async def ask() -> None:
                for number in waiting:
                    found[number] = self._settled(places[number], await self._asked(places[number]))

            if len(there) == 1:  # a later turn of an episode: a nursery would cost the loop as much as its question
                await ask()
            else:
                with first_cause():
                    async with trio.open_nursery() as nursery:
                        for _ in range(min(len(there), self._pool.most_questions)):
                            nursery.start_soon(ask)
        return [found[number] for number in range(len(places))]

    async def _answer_apart(self, spots: Sequence[_Spot]) -> list[Reply | Failure]:
        return await trio.to_thread.run_sync(self._answered_here, spots)

    def _answered_together(self, asked: Sequence[Sequence[_Spot]]) -> list[list[Reply | Failure]]:
        """Answer the first calls. After TURN_S the others wait for the next batch."""
        began, found = perf_counter(), list[list[Reply | Failure]]()
        for spots in asked:
            found.append(self._answered_here(spots))
            if perf_counter() - began > TURN_S:
                break
        return found

    def _answered_here(self, spots: Sequence[_Spot]) -> list[Reply | Failure]:
        return [self._one_answer(spot) for spot in spots]

    def _heard(self, heard: Remark) -> None:
        """Record that a service is down, is back, or gave no reward."""
        self.events.emit("reward_service", service=heard.service, how=heard.how, detail=heard.detail)
        if trouble := self._news.trouble(heard):
            self.events.emit("trouble", text=trouble)

    def _one_answer(self, place: _Spot) -> Reply | Failure:
        encoded, limits = self.suite.tasks[place.title], self.suite.limits
        try:
            return encoded.reply(
                place.index,
                place.said,
                place.transcript,
                limits,
                held_out=place.held_out,
                digests=place.digests,
                read=place.read,
            )
        except TaskError as error:
            return _failure(error)

    async def _asked(self, place: _Spot) -> Reply | Failure:
        assert self._pool is not None
        replying = self.suite.tasks[place.title].replying(
            place.index,
            place.said,
            place.transcript,
            self.suite.limits,
            held_out=place.held_out,
            digests=place.digests,
            read=place.read,
        )
        problem: Problem | None = None
        if self.suite.tasks[place.title].gate.has_environments:  # they must know how to read what was said
            found = await self._problem(place.title, Place(index=place.index, held_out=place.held_out))
            if isinstance(found, Failure):
                return found
            problem = found
        step = await self._moves(_Move(replying=replying, problem=problem))
        while isinstance(step, Asked | Place):
            answer: Judgement | Problem | Failure
            if isinstance(step, Place):
                answer = await self._problem(place.title, step)
            else:
                answer = await self._pool.judge(place.title, step)
            if isinstance(answer, Failure):
                return answer
            step = await self._moves(_Move(replying=replying, answer=answer, problem=problem))
        return step

    def _settled(self, place: _Spot, reply: Reply | Failure) -> Reply:
        """Return the reply that the learner continues with. Raises RunError when everything fails."""
        if isinstance(reply, Failure):
            return self._failed(place, reply)
        self._in_a_row, self._never[place.title] = 0, -1
        if isinstance(reply, Ended):
            self._unsaid[place.title] = 0
        return reply

    def _failed(self, place: _Spot, failure: Failure) -> Reply:
        """Return the end of the episode after a failure. Raises RunError when everything fails."""
        if failure.how == "unsaid":
            return self._nobody_said(place, failure)
        self.failures += 1
        void = self.section.on_failure == "drop"
        self.events.emit(
            "reward_failed",
            task=place.title,
            index=place.index,
            held_out=place.held_out,
            how=failure.how,
            detail=failure.detail,
        )
        self._in_a_row += 1
        if self._in_a_row >= FAILED_IN_A_ROW:
            raise _broken("rewards could not be computed", failure)
        consequence = "Their groups are dropped." if void else "They count as 0."
        if self.failures & (self.failures - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...
            self.events.emit(
                "trouble",
                text=f"{counted(self.failures, 'reward')} could not be computed. {consequence} The newest failure, at "
                f"problem {place.index} of task {place.title}: {failure.detail}",
            )
        self._warn_if_never_right(place.title, failure)
        return Ended(reward=0.0, failure=f"{failure.how}: {failure.detail}", void=void)

    def _nobody_said(self, place: _Spot, failure: Failure) -> Reply:
        """Return the end of the episode without a reward. It is no failure, but the operator is told of many in a
        row."""
        self._in_a_row = 0  # the task has answered
        count = self._unsaid[place.title] = self._unsaid.get(place.title, 0) + 1
        if count >= UNSAID_IN_A_ROW and count & (count - 1) == 0:
            self.events.emit(
                "trouble",
                text=f"Task {place.title} gave no reward for its last {count} completions, so their groups are "
                f"dropped: {failure.detail}. Check whether its `reward` returns CANNOT_SAY too often, or whether a "
                "service that it asks does not answer.",
            )
        return Ended(reward=0.0, failure=f"unsaid: {failure.detail}", void=True)

    def _warn_if_never_right(self, title: str, failure: Failure) -> None:
        """Tell the operator once that a task has not judged a single completion."""
        if (failed := self._never.get(title, 0)) < 0:
            return
        self._never[title] = failed + 1
        if failed + 1 == NEVER_RIGHT:
            self._never[title] = -1
            self.events.emit(
                "trouble",
                text=f"Task {title} has judged none of its first {NEVER_RIGHT} completions, so the policy cannot learn "
                f"from it. Stop the learner, correct the task, and start again. The newest failure: {failure.detail}",
            )


def require_here(suite: TaskSuite, section: VerifiersSection, decides: str = "") -> None:
    """Check that tasks can compute their rewards here, unless only other machines compute them.

    Raises TaskError when something that a task needs is missing, when it gives no reward, and when no task gives the
    reward called `decides`.
    """
    if section.workers == 0 and section.machine:
        return
    named: list[frozenset[str] | None] = []
    for title, encoded in suite.tasks.items():
        encoded.gate.require()
        with naming(f"[task] {title}"):
            require_services(encoded.gate)
        if not encoded.gate.is_ours or decides:
            with naming(f"[task] {title}"):
                named.append(require_reward(encoded.gate))
    names = [one for one in named if one is not None]
    if decides and len(names) == len(named) and decides not in (known := frozenset[str]().union(*names)):
        shown = f"the tasks give {', '.join(sorted(known))}" if known else "the tasks give one reward, without a name"
        raise TaskError(
            f"[curriculum] decided_by = {decides!r}: no task has a reward of that name; {shown}. Correct it, or leave "
            "it out."
        )
    close_all()  # verifiers open their own


def _broken(what: str, failure: Failure) -> RunError:
    return RunError(
        f"The last {FAILED_IN_A_ROW} {what}. Correct the task or raise [verifiers] timeout_s, then start again: "
        f"nothing that was acknowledged is lost. The newest failure: {failure.detail}"
    )


def _made_together(moves: Sequence[_Move]) -> list[_Step]:
    """Make the first moves. After TURN_S the others wait for the next batch."""
    began, found = perf_counter(), list[_Step]()
    for move in moves:
        found.append(move.made())
        if perf_counter() - began > TURN_S:
            break
    return found


def _failure(error: TaskError) -> Failure:
    if isinstance(error, NobodyCanSay):
        return Failure(how="unsaid", detail=str(error))
    return Failure(how="otherwise" if isinstance(error, AnsweredOtherwise) else "raised", detail=str(error))


def _commands(section: VerifiersSection) -> list[tuple[str, Sequence[str]]]:
    """Return (name, command) of each verifier."""
    here = min(MAX_USUAL, max(1, (os.cpu_count() or 2) // 2)) if section.workers is None else section.workers
    commands: list[tuple[str, Sequence[str]]] = [(f"verifier {number}", VERIFIER) for number in range(1, here + 1)]
    for machine in section.machine:
        for _ in range(machine.workers):
            commands.append((f"verifier {len(commands) + 1} ({shlex.join(machine.command)})", machine.command))
    return commands
