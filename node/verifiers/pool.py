"""Verifiers: processes that write problems and say what completions are worth, so that nothing that a task does, and
nothing that a policy says, can hold up the learner.

Each is a child (`node.processes.child`) that speaks the conversation of `node.verifiers.worker`, and is asked one thing
at a time. What always holds: a question is answered, or has a `Failure`, which is a value; one that takes longer than
`timeout_s` ends its process, here or on the machine where that runs, and one that died, or says what cannot be read, is
started again, for ever; a question whose verifier died is asked of another before it counts as failed, since a cut line
is not the completion's fault, and a verifier that is away is asked nothing until it is back. Who waits for a verifier
waits in the caller's own task: the pool queues nothing.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import trio

from node.processes.child import SupervisedChild, open_child
from node.processes.child_process import ChildProcess
from node.processes.outcomes import ChildCrashed, ChildEvent, ChildRefused
from node.processes.spec import ChildSpec, RestartLimits
from node.runtime.errors import RunError
from node.tasks.api.interface import MAX_REWARD, Answer, Chat, ChatMessage, Problem
from node.tasks.gate import Place
from node.tasks.grading import Asked, Judgement
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
    """Why there is no judgement: its time was up, its verifiers died, or the task raised an error; in a sentence."""

    how: Literal["timed_out", "died", "raised"]
    detail: str


@dataclass(frozen=True, kw_only=True)
class PoolTerms:
    """What every verifier is opened with: `tasks` by title, each with what `open_task` wants, and its fingerprint here.

    `timeout_s` for each question; `memory_gb` of address space for each process.
    """

    tasks: Mapping[str, Mapping[str, Any]]
    fingerprints: Mapping[str, str]
    timeout_s: float
    memory_gb: float
    late_s: float = LATE_S
    open_s: float = OPEN_S


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _Question(Generic[T]):
    """What a verifier is asked, and how its reply is read. `read` raises KeyError, TypeError or ValueError for what is
    no answer to that."""

    op: str
    header: Mapping[str, object]
    read: Callable[[Header], T]


class VerifierPool:
    """See the module's paragraph. Obtained from `open_pool`."""

    def __init__(self, terms: PoolTerms, nursery: trio.Nursery, size: int) -> None:
        self._terms = terms
        self._nursery = nursery
        self.size = size
        self._closed = False
        self._take, self._idle = trio.open_memory_channel[SupervisedChild](size)

    async def judge(self, task: str, asked: Asked) -> Judgement | Failure:
        """What the task called `task` says to `asked`. Waits until a verifier is idle, then at most `timeout_s`, or
        some times that when verifiers die; once the pool is closed, until it is cancelled."""
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

    def close(self) -> None:
        """The verifiers are about to be ended."""
        self._closed = True

    async def _ready(self) -> SupervisedChild:
        """The next that is idle and there. Machines go away with all their verifiers while nobody asks them anything:
        to wait for those would cost the question its time."""
        while (child := await self._idle.receive()).pid is None:
            self._nursery.start_soon(self._rest, child)
        return child

    async def _ask(self, child: SupervisedChild, question: _Question[T]) -> T | Failure:
        with trio.move_on_after(self._terms.timeout_s + self._terms.late_s) as scope:
            try:
                reply, _ = await child.call(question.op, question.header)
            except ChildRefused as refused:
                return Failure(how="raised", detail=refused.error)
        if scope.cancelled_caught:
            child.end(f"it has not answered for {self._terms.timeout_s + self._terms.late_s:g} s")
            detail = f"no answer within {self._terms.timeout_s:g} s, nor an end"
            raise _NoAnswer(Failure(how="timed_out", detail=detail))
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


def _read_judgement(asked: Asked, reply: Header) -> Judgement:
    """Raises KeyError, TypeError or ValueError for what is no answer to that."""
    if asked.wants_reward:
        reward = float(reply["reward"])
        if not abs(reward) <= MAX_REWARD:  # as nothing is that is no number
            raise ValueError(f"the reward {reward}")
        return reward
    answer = reply["answer"]
    return None if answer is None else _read_conversation(answer)


def _read_problem(reply: Header) -> Problem:
    """Raises KeyError, TypeError or ValueError for what is none."""
    return Problem(prompt=_read_conversation(reply["prompt"]), chat=Chat(reply["chat"]))


def _read_conversation(told: Any) -> Answer:
    """Text, or messages. Raises TypeError or ValueError for what is neither."""
    if isinstance(told, list):
        return tuple(ChatMessage(role=str(role), content=str(content)) for role, content in told)
    return str(told)


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
        env={"PYTHONHASHSEED": "0"},
        nice=NICE,
        max_in_flight=2,
        restarts=RESTARTS,
    )
    try:
        async with open_child(spec, prepare=partial(_prepare, terms), on_event=on_event) as child:
            pool._take.send_nowait(child)
            task_status.started()
            await trio.sleep_forever()
    except ChildCrashed as crash:
        raise RunError(f"A verifier cannot run: {crash}") from crash


async def _prepare(terms: PoolTerms, child: ChildProcess) -> None:
    """Let it open the tasks. Raises ChildRefused when it never does, or when they are not ours: their rewards would be
    others, too."""
    with trio.move_on_after(terms.open_s) as scope:
        reply, _ = await child.call(
            "open", {"tasks": terms.tasks, "timeout_s": terms.timeout_s, "memory_gb": terms.memory_gb}
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
