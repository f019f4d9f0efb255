"""Who writes prompts and says what completions are worth: the node itself where a task is cheap, verifiers' processes
for all others.

What always holds: the loops of the node never wait for a task's code on their own thread; whatever a task does, here or
there, each question gets a reply. One that nobody could answer ends its episode, with a reward of 0 or as void as the
operator has chosen (`[verifiers] on_failure`), is an event, and is told in words now and then; of a task of which all
first rewards fail that is said once, plainly; only where everything fails the run ends. What may wait is bounded by who
asks: the deliveries that are under way, an evaluation, and the prompts that are prepared
(`node.learner_role.scheduling.prompt_writer`).
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
"""Verifiers on this machine unless the file says how many: half of its cores, since rollouts may be made here, too."""

FAILED_IN_A_ROW = 256
"""So many questions without one answer are no strange completions: the task is broken, and the run would learn that."""

NEVER_RIGHT = 16
"""So many first questions of one task without an answer are told as what they are: two groups of eight. Chance and odd
completions explain one or two of them."""

UNSAID_IN_A_ROW = 64
"""So many completions of one task of which nobody can say anything, eight groups of eight, are told: each is no
failure, but a run that drops all of its groups learns nothing."""

TURN_S = 0.005
"""Answers that are given together end one another's waiting: once so long has passed, those that are there go out."""

MOST_TOGETHER = 64
"""Deliveries that are answered together: twice as many as are under way at a time."""

MAX_POSED = 256
"""Problems that are remembered beside their prompts, since an answer between two turns goes through the same chat
template: those that batches of episodes are at."""


@dataclass(frozen=True, kw_only=True)
class _Spot:
    """What is asked: problem `index` of the task called `title`."""

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
    """A reply that is being made, what it is sent, and its problem if that is known: it asks for that one alone."""

    replying: Replying
    answer: Judgement | Problem = None
    problem: Problem | None = None

    def made(self) -> _Step:
        """What to ask next, or the reply."""
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
    """See the module's paragraph. Cheap tasks can be asked at once, others once `opened` is entered."""

    schooling: TaskSuite
    section: VerifiersSection
    events: EventLog
    failures: int = 0
    _in_a_row: int = 0
    _unwritten: int = 0
    """Prompts in a row that no verifier could write."""
    _never: dict[str, int] = field(default_factory=dict)
    """Questions without an answer of each task that has not answered one; -1: it has, or that was told."""
    _unsaid: dict[str, int] = field(default_factory=dict)
    """Completions of each task in a row of which nobody can say anything."""
    _posed: dict[tuple[str, Place], Problem] = field(default_factory=dict)
    _news: ServiceNews = field(default_factory=ServiceNews)
    _pool: VerifierPool | None = None
    _there: trio.Event = field(default_factory=trio.Event)
    _answer: BatchedCalls[Sequence[_Spot], list[Reply | Failure]] = field(init=False)
    """What deliveries ask of cheap tasks. They come many at once, and a thread's turn costs more than an answer."""
    _moves: BatchedCalls[_Move, _Step] = field(init=False)
    """Tokens to text and back, for what verifiers are asked: a thread's turn for each would hold up the loop."""
    _desk: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))
    """Where prompts are written: a task that is slow at them holds up no reward."""

    def __post_init__(self) -> None:
        self._answer = BatchedCalls(self._answered_together, most=MOST_TOGETHER)
        self._moves = BatchedCalls(_made_together, most=MOST_TOGETHER)

    @property
    def pooled(self) -> list[str]:
        """Titles of the tasks that verifiers are asked for."""
        if not _commands(self.section):
            return []
        return [title for title, encoded in self.schooling.tasks.items() if not encoded.gate.is_cheap]

    @property
    def writers(self) -> int:
        """How many prompts are written at a time: as many as half of the verifiers, so that rewards, which peers wait
        for, find one soon."""
        return max(1, len(_commands(self.section)) // 2)

    def is_pooled(self, index: int) -> bool:
        """Whether verifiers are asked for the training problem of `index`."""
        _, title = self.schooling.place(index)
        return not self.schooling.tasks[title].gate.is_cheap and bool(_commands(self.section))

    @asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Start the verifiers, if any task needs them, and end them with the scope. Raises RunError."""
        if not self.pooled:
            self._there.set()
            yield
            return
        terms = PoolTerms(
            tasks={title: self.schooling.origins[title] for title in self.pooled},
            fingerprints={
                part.name: part.fingerprint for part in self.schooling.curriculum.parts if part.name in self.pooled
            },
            timeout_s=self.section.timeout_s,
            memory_gb=self.section.memory_gb,
            awaited=frozenset(title for title in self.pooled if self.schooling.tasks[title].gate.has_async_reward),
            played=frozenset(title for title in self.pooled if self.schooling.tasks[title].gate.has_environments),
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
        """What comes back in training problems, in the order of the questions. Raises RunError, see FAILED_IN_A_ROW."""
        places = []
        for one in questions:
            index, title = self.schooling.place(one.index)
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
        """The same in held-out problems."""
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
        """What these training prompts say, in order. Raises RunError after FAILED_IN_A_ROW that nobody could write."""
        pooled = set(self.pooled)
        found: dict[int, Written] = {}
        if here := [index for index in indexes if self.schooling.place(index)[1] not in pooled]:
            written = self.schooling.write_prompt
            said = await trio.to_thread.run_sync(lambda: [written(index) for index in here], limiter=self._desk)
            found.update(zip(here, said, strict=True))
        for index in indexes:
            if index not in found:
                found[index] = await self._prompt(index)
        return [found[index] for index in indexes]

    async def _prompt(self, index: int) -> Written:
        inner, title = self.schooling.place(index)
        problem = await self._problem(title, Place(index=inner))
        if isinstance(problem, Failure):
            self._unwritten += 1
            if self._unwritten >= FAILED_IN_A_ROW:
                raise _broken("prompts could not be written", problem)
            return f"task {title}: {problem.detail}"
        self._unwritten = 0
        encoded = self.schooling.tasks[title]
        try:
            return await trio.to_thread.run_sync(encoded.encode_prompt, problem, limiter=self._desk)
        except TaskError as error:
            return f"task {title}: {error}"

    async def _problem(self, title: str, place: Place) -> Problem | Failure:
        """What a pooled task asks there, as a verifier has it."""
        if (known := self._posed.pop((title, place), None)) is None:
            await self._there.wait()
            assert self._pool is not None
            found = await self._pool.pose(title, place)
            if isinstance(found, Failure):
                return found
            known = found
        if self.schooling.tasks[title].gate.has_turns:  # else nobody asks for it again
            self._posed[title, place] = known  # the last that was asked for is forgotten last
        if len(self._posed) > MAX_POSED:
            del self._posed[next(iter(self._posed))]
        return known

    def ask_one(self, question: Question) -> Reply:
        """The same for one training problem, asked from a worker thread, which waits."""
        [reply] = trio.from_thread.run(self.replies, [question])
        return reply

    async def _all(self, places: Sequence[_Spot], answer: _Answer) -> list[Reply]:
        """`answer`: what is asked here, of tasks that no verifier has."""
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

            if len(there) == 1:  # a later turn of an episode: a nursery would cost the loop as much as the question
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
        """Of the first that ask: the others wait for another turn once this one has taken TURN_S."""
        began, found = perf_counter(), list[list[Reply | Failure]]()
        for spots in asked:
            found.append(self._answered_here(spots))
            if perf_counter() - began > TURN_S:
                break
        return found

    def _answered_here(self, spots: Sequence[_Spot]) -> list[Reply | Failure]:
        return [self._one_answer(spot) for spot in spots]

    def _heard(self, heard: Remark) -> None:
        """A service is down or back, or says nothing."""
        self.events.emit("reward_service", service=heard.service, how=heard.how, detail=heard.detail)
        if trouble := self._news.trouble(heard):
            self.events.emit("trouble", text=trouble)

    def _one_answer(self, place: _Spot) -> Reply | Failure:
        encoded, limits = self.schooling.tasks[place.title], self.schooling.limits
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
        replying = self.schooling.tasks[place.title].replying(
            place.index,
            place.said,
            place.transcript,
            self.schooling.limits,
            held_out=place.held_out,
            digests=place.digests,
            read=place.read,
        )
        problem: Problem | None = None
        if self.schooling.tasks[place.title].gate.has_environments:  # which are told how what was said is read
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
        """The reply as the learner goes on with it. Raises RunError when everything fails."""
        if isinstance(reply, Failure):
            return self._failed(place, reply)
        self._in_a_row, self._never[place.title] = 0, -1
        if isinstance(reply, Ended):
            self._unsaid[place.title] = 0
        return reply

    def _failed(self, place: _Spot, failure: Failure) -> Reply:
        """Raises RunError when everything fails."""
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
        worth = "Its group is dropped." if void else "It counts as 0."
        if self.failures & (self.failures - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...
            self.events.emit(
                "trouble",
                text=f"{self.failures} rewards could not be computed; the newest, of problem {place.index} of task "
                f"{place.title}: {failure.detail}. {worth}",
            )
        self._doubt(place.title, failure)
        return Ended(reward=0.0, failure=f"{failure.how}: {failure.detail}", void=void)

    def _nobody_said(self, place: _Spot, failure: Failure) -> Reply:
        """No failure, but what goes on for long is told."""
        self._in_a_row = 0  # the task has answered
        count = self._unsaid[place.title] = self._unsaid.get(place.title, 0) + 1
        if count >= UNSAID_IN_A_ROW and count & (count - 1) == 0:
            self.events.emit(
                "trouble",
                text=f"Nobody can say what the last {count} completions of task {place.title} are worth, so their "
                f"groups are dropped: {failure.detail}. See whether its `reward` returns CANNOT_SAY too often, or what "
                "it asks does not answer.",
            )
        return Ended(reward=0.0, failure=f"unsaid: {failure.detail}", void=True)

    def _doubt(self, title: str, failure: Failure) -> None:
        """Say once of a task that it has not judged a single completion."""
        if (failed := self._never.get(title, 0)) < 0:
            return
        self._never[title] = failed + 1
        if failed + 1 == NEVER_RIGHT:
            self._never[title] = -1
            self.events.emit(
                "trouble",
                text=f"Task {title} has not judged one of its first {NEVER_RIGHT} completions, so nothing can be "
                f"learnt from it: {failure.detail}. Stop the learner, mend the task, and start again.",
            )


def require_here(schooling: TaskSuite, section: VerifiersSection, decides: str = "") -> None:
    """Raises TaskError when a task needs something for its rewards that is not here, or gives none, unless only other
    machines compute them; and where no task gives the reward called `decides`."""
    if section.workers == 0 and section.machine:
        return
    named: list[frozenset[str] | None] = []
    for title, encoded in schooling.tasks.items():
        encoded.gate.require()
        with naming(f"[task] {title}"):
            require_services(encoded.gate)
        if not encoded.gate.is_ours or decides:
            with naming(f"[task] {title}"):
                named.append(require_reward(encoded.gate))
    names = [one for one in named if one is not None]
    if decides and len(names) == len(named) and decides not in (known := frozenset[str]().union(*names)):
        shown = f"they give {', '.join(sorted(known))}" if known else "they give one reward, without a name"
        raise TaskError(
            f"[curriculum] decided_by = {decides!r}: no task has a reward of that name; {shown}. Correct it, or leave "
            "it out."
        )
    close_all()  # verifiers have their own


def _broken(what: str, failure: Failure) -> RunError:
    return RunError(
        f"The last {FAILED_IN_A_ROW} {what}, the newest since {failure.detail}. Mend the task or raise [verifiers] "
        "timeout_s, then start again: nothing that was acknowledged is lost."
    )


def _made_together(moves: Sequence[_Move]) -> list[_Step]:
    """Of the first moves: the others wait for another turn once this one has taken TURN_S."""
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
    """(name, command) of each verifier."""
    here = min(MAX_USUAL, max(1, (os.cpu_count() or 2) // 2)) if section.workers is None else section.workers
    commands: list[tuple[str, Sequence[str]]] = [(f"verifier {number}", VERIFIER) for number in range(1, here + 1)]
    for machine in section.machine:
        for _ in range(machine.workers):
            commands.append((f"verifier {len(commands) + 1} ({shlex.join(machine.command)})", machine.command))
    return commands
