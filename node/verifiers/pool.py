"""Verifiers: processes that write problems and say what completions are worth, so that nothing that a task does, and
nothing that a policy says, can hold up the learner.

Each is a child (`node.processes.child`) that speaks the conversation of `node.verifiers.worker`, and is asked one thing
at a time, and beside that about `at_once` episodes, whose environments may wait. What always holds: a question is
answered, or has a `Failure`, which is a value; one that takes longer than `timeout_s` ends its process, here or on the
machine where that runs, and one that died, or says what cannot be read, is started again, for ever; a question whose
verifier died is asked of another before it counts as failed, since a cut line is not the completion's fault, and a
verifier that is away is asked nothing until it is back; about an episode that one is asked where its environment is
alive, and any other when that is away. Who waits for a verifier waits in the caller's own task: nothing is queued here.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import trio

from node.processes.child import SupervisedChild, open_child
from node.processes.child_process import ChildProcess
from node.processes.outcomes import ChildCrashed, ChildEvent, ChildRefused
from node.processes.spec import ChildSpec, RestartLimits
from node.runtime.errors import RunError
from node.tasks.api.interface import Chat, Problem
from node.tasks.environments.question import EpisodeQuestion, digest_of_answer
from node.tasks.gate import Place
from node.tasks.grading import Asked, Judgement, otherwise
from node.tasks.services.remarks import Remark
from node.tasks.worth import read_worth
from node.verifiers.conversation import read_conversation, read_tools
from node.verifiers.remarks import read_remarks
from node.verifiers.seats import Seats
from protocol.core.pipe import Header
from swarm.transport.error_groups import first_cause

VERIFIER = (sys.executable, "-m", "node.verifiers.worker")
"""The command of a verifier on this machine."""

LATE_S = 5.0
"""Beyond a question's own time, for the way to another machine and back: then the line is taken for dead and ended."""

OPEN_S = 300.0
"""To open the tasks: files of millions of lines take minutes. A verifier that takes longer never opens them."""

TRIES = 3
"""Verifiers that may die over one question: a machine that goes away takes one, or two; a third is no chance."""

NICE = 5
"""Behind the node and the trainer: a reward that comes late holds up a batch, and never a step that is being taken."""

RESTARTS = RestartLimits(first_delay_s=0.1, max_delay_s=2.0, max_restarts=1 << 30, window_s=60.0)
"""Never given up: that a completion killed its verifier is nobody's mistake, and a machine may come back. At 2 s, a
minute holds 30 restarts, so the delay's power of two stays small."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why there is no judgement, in a sentence: its time was up, its verifiers died, the task raised an error, or an
    environment that was made anew answered otherwise than the one that was lost. "unsaid": nobody can say, which is no
    fault."""

    how: Literal["timed_out", "died", "raised", "otherwise", "unsaid"]
    detail: str


@dataclass(frozen=True, kw_only=True)
class PoolTerms:
    """What every verifier is opened with: `tasks` by title, each with what `open_task` wants, and its fingerprint here.

    `timeout_s` for each question, or for each call of an environment; `memory_gb` of address space for each process.
    Those of `played` have environments, of which `environments` are alive in each process at most, and each that
    nobody asked anything for `idle_s` is closed; those of `awaited` have rewards that are waited for. About `at_once`
    episodes or rewards of both a process is asked at a time.
    """

    tasks: Mapping[str, Mapping[str, Any]]
    fingerprints: Mapping[str, str]
    timeout_s: float
    memory_gb: float
    played: frozenset[str] = frozenset()
    awaited: frozenset[str] = frozenset()
    environments: int = 64
    idle_s: float = 600.0
    at_once: int = 16
    late_s: float = LATE_S
    open_s: float = OPEN_S

    @property
    def at_once_beside(self) -> int:
        """What a process is asked at a time beside one question after the other."""
        return self.at_once if self.played or self.awaited else 0


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _Question(Generic[T]):
    """What a verifier is asked, and how its reply is read. `read` raises KeyError, TypeError or ValueError for what is
    no answer to that."""

    op: str
    header: Mapping[str, object]
    read: Callable[[Header], T]


@dataclass(eq=False)
class _Seated:
    """Who waits for a seat, and has it once `name` says where."""

    question: EpisodeQuestion
    name: str | None = None
    called: trio.Event = field(default_factory=trio.Event)


class VerifierPool:
    """See the module's paragraph. Obtained from `open_pool`."""

    def __init__(self, terms: PoolTerms, nursery: trio.Nursery, size: int) -> None:
        self._terms = terms
        self._nursery = nursery
        self.size = size
        self._closed = False
        self._take, self._idle = trio.open_memory_channel[SupervisedChild](size)
        self._children: dict[str, SupervisedChild] = {}
        self._seats = Seats(at_once=terms.at_once)
        self.on_remark: Callable[[Remark], None] = lambda remark: None
        """Is told what verifiers have heard of services."""
        self._line: dict[_Seated, None] = {}
        """Who waits for a seat, in the order they came."""

    @property
    def most_questions(self) -> int:
        """So many may be asked at a time, that each has a verifier at once."""
        return self.size * (1 + self._terms.at_once_beside)

    async def judge(self, task: str, asked: Asked) -> Judgement | Failure:
        """What the task called `task` says to `asked`. Waits until a verifier is idle, then at most `timeout_s`, or
        some times that when verifiers die; once the pool is closed, until it is cancelled."""
        if task in self._terms.played:
            return await self._play(asked.of_episode(task))
        if task in self._terms.awaited and asked.wants_reward:
            return await self._play(asked.of_transcript(task))
        question = {
            "task": task,
            "index": asked.index,
            "held_out": asked.held_out,
            "said": asked.said,
            "finished": asked.finished,
            "wants_reward": asked.wants_reward,
        }
        return await self._answer(_Question(op="judge", header=question, read=partial(_read_judgement, asked)))

    async def pose(self, task: str, place: Place) -> Problem | Failure:
        """What the task called `task` asks there, without its answer. Waits as `judge` does."""
        question = {"task": task, "index": place.index, "held_out": place.held_out}
        return await self._answer(_Question(op="pose", header=question, read=_read_problem))

    async def _answer(self, question: _Question[T]) -> T | Failure:
        failure = Failure(how="died", detail="")
        for _ in range(TRIES):
            child = await self._ready()
            began = trio.current_time()
            try:
                return await self._ask(child, question)
            except _NoAnswer as none:
                failure = none.failure
            except ChildCrashed as crash:
                if crash.exit.reason is None and trio.current_time() - began >= self._terms.timeout_s:
                    return Failure(how="timed_out", detail=f"no answer within {self._terms.timeout_s:g} s")
                failure = Failure(how="died", detail=str(crash).splitlines()[0])
            finally:
                if not self._closed:
                    self._nursery.start_soon(self._rest, child)
            if self._closed:  # that its verifier has ended says nothing of the completion
                await trio.sleep_forever()
        return failure

    async def _play(self, question: EpisodeQuestion) -> Judgement | Failure:
        """What an environment says, or a reward that is waited for. A verifier that ends has many at work, and any of
        them may be why: so all that it was asked is asked again elsewhere, some times."""
        asked = _Question(op="play", header=_episode_header(question), read=partial(_read_play, question))
        # To be told all again takes a call for each turn, and to be made and ended one each.
        within_s = self._terms.timeout_s * (len(question.said) + 2) + self._terms.late_s
        failure = Failure(how="died", detail="")
        for _ in range(TRIES):
            name = await self._seat(question)
            try:
                answer = await self._ask(self._children[name], asked, within_s)
                if not question.wants_reward and not isinstance(answer, Failure | float):
                    self._seats.answered(question, digest_of_answer(answer), name)
                return answer
            except _NoAnswer as none:
                failure = none.failure
            except ChildCrashed as crash:
                failure = Failure(how="died", detail=str(crash).splitlines()[0])
            finally:
                self._seats.leave(name)
                self._call_up()
            if self._closed:
                await trio.sleep_forever()
            self._nursery.start_soon(self._return, self._children[name])
        return failure

    async def _return(self, child: SupervisedChild) -> None:
        """Once it is back, those who wait may be asked there."""
        await child.wait_in_service()
        self._call_up()

    async def _seat(self, question: EpisodeQuestion) -> str:
        """Take a seat, and return at which verifier. Waits for one that is there."""
        one = _Seated(question)
        self._line[one] = None
        self._call_up()
        try:
            while one.name is None:
                if self._there():
                    await one.called.wait()
                else:
                    await self._wait_back()
        except BaseException:
            if one.name is not None:
                self._seats.leave(one.name)
                self._call_up()
            raise
        finally:
            self._line.pop(one, None)
        return one.name

    def _there(self) -> list[str]:
        return [name for name, child in self._children.items() if child.pid is not None]

    def _call_up(self) -> None:
        """Give seats that are free to those who wait."""
        if not (there := self._there()):
            return
        for one in list(self._line):
            if (name := self._seats.take(one.question, there)) is not None:
                one.name = name
                del self._line[one]
                one.called.set()

    async def _wait_back(self) -> None:
        """Until a verifier is there, and seats are given."""
        async with trio.open_nursery() as nursery:

            async def wait(child: SupervisedChild) -> None:
                await self._return(child)
                nursery.cancel_scope.cancel()

            for child in self._children.values():
                nursery.start_soon(wait, child)

    def close(self) -> None:
        """The verifiers are about to be ended."""
        self._closed = True

    async def _ready(self) -> SupervisedChild:
        """The next that is idle and there. Machines go away with all their verifiers while nobody asks them anything:
        to wait for those would cost the question its time."""
        while (child := await self._idle.receive()).pid is None:
            self._nursery.start_soon(self._rest, child)
        return child

    async def _ask(self, child: SupervisedChild, question: _Question[T], within_s: float | None = None) -> T | Failure:
        """`within_s`: how long it may take, if that is not a question's own time and the way."""
        within_s = self._terms.timeout_s + self._terms.late_s if within_s is None else within_s
        with trio.move_on_after(within_s) as scope:
            try:
                reply, _ = await child.call(question.op, question.header)
            except ChildRefused as refused:
                return Failure(how="timed_out" if refused.kind == "time" else "raised", detail=refused.error)
        if scope.cancelled_caught:
            child.end(f"it has not answered for {within_s:g} s")
            detail = f"no answer within {within_s - self._terms.late_s:g} s, nor an end"
            raise _NoAnswer(Failure(how="timed_out", detail=detail))
        for heard in read_remarks(reply.get("remarks")):
            self.on_remark(heard)
        try:
            return question.read(reply)
        except (KeyError, TypeError, ValueError) as error:
            what = f"its answer cannot be read ({type(error).__name__}: {error}); is it the same volery?"
            child.end(what)
            raise _NoAnswer(Failure(how="died", detail=what)) from None

    async def _rest(self, child: SupervisedChild) -> None:
        """It may be asked again, once it is there."""
        await child.wait_in_service()
        self._take.send_nowait(child)


class _NoAnswer(Exception):
    """The verifier neither answered in time nor ended, or said what is no answer."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


def _read_judgement(asked: Asked, reply: Header) -> Judgement | Failure:
    """Raises KeyError, TypeError or ValueError for what is no answer to that."""
    return _read_told(reply, wants_reward=asked.wants_reward)


def _read_told(reply: Header, *, wants_reward: bool) -> Judgement | Failure:
    """Raises KeyError, TypeError or ValueError for what is neither."""
    if wants_reward and "unsaid" in reply:
        return Failure(how="unsaid", detail=str(reply["unsaid"]))
    if wants_reward:
        return read_worth(reply)
    answer = reply["answer"]
    return None if answer is None else read_conversation(answer)


def _episode_header(question: EpisodeQuestion) -> dict[str, object]:
    return {
        "task": question.task,
        "index": question.place.index,
        "held_out": question.place.held_out,
        "said": question.said,
        "digests": question.digests,
        "finished": question.finished,
        "wants_reward": question.wants_reward,
        "tool_format": question.tool_format,
        "in_thinking": question.in_thinking,
    }


def _read_play(question: EpisodeQuestion, reply: Header) -> Judgement | Failure:
    """Raises KeyError, TypeError or ValueError for what is no answer to that, another's answer among others."""
    if reply["of"] != question.key:
        raise ValueError("it is the answer to another question")
    if "otherwise" in reply:
        detail = otherwise(question.task, question.place, int(reply["otherwise"]))
        return Failure(how="otherwise", detail=detail)
    return _read_told(reply, wants_reward=question.wants_reward)


def _read_problem(reply: Header) -> Problem:
    """Raises KeyError, TypeError or ValueError for what is none."""
    return Problem(
        prompt=read_conversation(reply["prompt"]), chat=Chat(reply["chat"]), tools=read_tools(reply.get("tools", ()))
    )


@asynccontextmanager
async def open_pool(
    commands: Sequence[tuple[str, Sequence[str]]],
    terms: PoolTerms,
    on_event: Callable[[str], Callable[[ChildEvent], None]] = lambda name: lambda event: None,
) -> AsyncIterator[VerifierPool]:
    """Start a verifier for each (name, command), wait until all hold the tasks, and end them when the scope is left.

    `on_event(name)` is told of its life. Raises RunError when one cannot be started, or holds other tasks than we.
    """
    with first_cause():
        async with trio.open_nursery() as nursery:
            pool = VerifierPool(terms, nursery, len(commands))
            async with trio.open_nursery() as starting:
                for name, command in commands:
                    starting.start_soon(nursery.start, partial(_keep, pool, name, command, terms, on_event(name)))
            try:
                yield pool
            finally:
                pool.close()
            nursery.cancel_scope.cancel()


async def _keep(
    pool: VerifierPool,
    name: str,
    command: Sequence[str],
    terms: PoolTerms,
    on_event: Callable[[ChildEvent], None],
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """One verifier's life in the pool."""
    spec = ChildSpec(
        name=name,
        argv=tuple(command),
        # Threads share two heaps: each of its own would count as 64 MiB of the address space that a process may have.
        env={"PYTHONHASHSEED": "0", "MALLOC_ARENA_MAX": "2"},
        nice=NICE,
        max_in_flight=2 + terms.at_once_beside,
        restarts=RESTARTS,
    )
    try:
        async with open_child(spec, prepare=partial(_prepare, terms), on_event=on_event) as child:
            pool._children[name] = child
            pool._take.send_nowait(child)
            task_status.started()
            await trio.sleep_forever()
    except ChildCrashed as crash:
        raise RunError(f"A verifier cannot run: {crash}") from crash


async def _prepare(terms: PoolTerms, child: ChildProcess) -> None:
    """Let it open the tasks. Raises ChildRefused when it never does, or when they are not ours: their rewards would be
    others, too."""
    with trio.move_on_after(terms.open_s) as scope:
        limits = {"environments": terms.environments, "idle_s": terms.idle_s, "at_once": terms.at_once}
        reply, _ = await child.call(
            "open", {"tasks": terms.tasks, "timeout_s": terms.timeout_s, "memory_gb": terms.memory_gb, **limits}
        )
    if scope.cancelled_caught:
        raise ChildRefused("too_slow", f"it has not opened the tasks within {terms.open_s:g} s. See what it waits for.")
    theirs = reply.get("fingerprints")
    for title, fingerprint in terms.fingerprints.items():
        found = theirs.get(title) if isinstance(theirs, dict) else None
        if found != fingerprint:
            raise ChildRefused(
                "other_task",
                f"task {title!r} is another one there ({found}, here {fingerprint}). Give that machine the same files, "
                "at the same path, and the same version of what the task is made of.",
            )
