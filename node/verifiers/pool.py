"""Keep a pool of verifier processes, which write problems and compute rewards.

With processes of their own, neither a task's code nor a policy's completion can delay the learner. Each verifier is a
child (`node.processes.child`) that uses the protocol of `node.verifiers.worker`. It is asked one question at a time,
and beside that about `at_once` episodes, whose environments may wait.

Invariants:

- Each question gets an answer or a `Failure`, which is a value.
- A question that takes longer than `timeout_s` ends its verifier's process, here or on the other machine.
- A verifier that died, or sent a reply that cannot be read, is started again, for ever.
- If a verifier dies, its question goes to another one before it counts as failed, because a broken connection is not
  the completion's fault.
- A verifier that is away gets no questions until it is back.
- A question about an episode goes to the verifier where its environment is alive, and to any other if that one is away.
- Callers wait for a verifier in their own tasks. Nothing is queued here.
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
from node.tasks.composed_reward import read_reward
from node.tasks.environments.question import EpisodeQuestion, digest_of_answer
from node.tasks.gate import Place
from node.tasks.grading import Asked, Judgement, otherwise
from node.tasks.services.remarks import Remark
from node.verifiers.conversation import read_conversation, read_tools
from node.verifiers.remarks import read_remarks
from node.verifiers.seats import Seats
from protocol.core.pipe import Header
from swarm.transport.error_groups import first_cause

VERIFIER = (sys.executable, "-m", "node.verifiers.worker")
"""The command of a verifier on this machine."""

LATE_S = 5.0
"""Seconds beyond a question's own time, for the way to another machine and back. After that the connection counts as
dead, and is ended."""

OPEN_S = 300.0
"""Seconds to open the tasks: files of millions of lines take minutes. A verifier that needs longer never opens them."""

TRIES = 3
"""Verifiers that may die over one question. A machine that goes away explains one or two deaths, but not a third."""

NICE = 5
"""Lower priority than the node and the trainer: a late reward delays a batch, but never a training step that runs."""

RESTARTS = RestartLimits(first_delay_s=0.1, max_delay_s=2.0, max_restarts=1 << 30, window_s=60.0)
"""Restarts never end: a completion that killed its verifier is no error of the node, and a machine may come back. At
2 s, a minute holds 30 restarts, so the delay's power of two stays small."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why there is no judgement. `detail` is a sentence.

    "timed_out": its time was up. "died": its verifiers died. "raised": the task raised an error. "otherwise": a new
    environment answered differently from the one that was lost. "unsaid": the task cannot say the reward, which is no
    error.
    """

    how: Literal["timed_out", "died", "raised", "otherwise", "unsaid"]
    detail: str


@dataclass(frozen=True, kw_only=True)
class PoolTerms:
    """The tasks and limits that every verifier gets when it opens.

    Args:
        tasks: the arguments of `open_task`, by title.
        fingerprints: each task's fingerprint on this machine, by title.
        timeout_s: seconds for each question, or for each call of an environment.
        memory_gb: gigabytes of address space for each process.
        played: titles of the tasks with environments.
        awaited: titles of the tasks whose rewards are `async`.
        environments: most environments that are alive in a process.
        idle_s: seconds without a question after which an environment is closed.
        at_once: episodes and `async` rewards that a process is asked about at a time.
        late_s: seconds beyond a question's time before the connection counts as dead.
        open_s: seconds to open the tasks.
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
        """Return how many questions a process gets at a time, beside those that it answers one after the other."""
        return self.at_once if self.played or self.awaited else 0


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class _Question(Generic[T]):
    """A question to a verifier, and how to read its reply.

    `read` raises KeyError, TypeError or ValueError if the reply does not answer the question.
    """

    op: str
    header: Mapping[str, object]
    read: Callable[[Header], T]


@dataclass(eq=False)
class _Seated:
    """A question that waits for a seat. It has one once `name` names the verifier."""

    question: EpisodeQuestion
    name: str | None = None
    called: trio.Event = field(default_factory=trio.Event)


class VerifierPool:
    """The running verifiers. Obtained from `open_pool`."""

    def __init__(self, terms: PoolTerms, nursery: trio.Nursery, size: int) -> None:
        self._terms = terms
        self._nursery = nursery
        self.size = size
        self._closed = False
        self._take, self._idle = trio.open_memory_channel[SupervisedChild](size)
        self._children: dict[str, SupervisedChild] = {}
        self._seats = Seats(at_once=terms.at_once)
        self.on_remark: Callable[[Remark], None] = lambda remark: None
        """Called with what verifiers report about services."""
        self._line: dict[_Seated, None] = {}
        """Questions that wait for a seat, in order of arrival."""

    @property
    def most_questions(self) -> int:
        """Return how many questions can be asked at a time without one waiting for a verifier."""
        return self.size * (1 + self._terms.at_once_beside)

    async def judge(self, task: str, asked: Asked) -> Judgement | Failure:
        """Return the judgement of the task called `task` on `asked`.

        Waits until a verifier is idle, then at most `timeout_s`, or TRIES times that when verifiers die. Once the pool
        is closed, it waits until it is cancelled.
        """
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
        """Return the problem of the task called `task` at `place`, without its answer. Waits as `judge` does."""
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
            if self._closed:  # the end of its verifier says nothing about the completion
                await trio.sleep_forever()
        return failure

    async def _play(self, question: EpisodeQuestion) -> Judgement | Failure:
        """Return an environment's answer, or an `async` reward.

        A verifier that dies has several episodes at work, and each may be the reason. So each of them is asked again
        elsewhere, TRIES times in all.
        """
        asked = _Question(op="play", header=_episode_header(question), read=partial(_read_play, question))
        # A new environment needs one call for each turn to hear everything again, one to be made and one to end.
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
        """Wait until the verifier is back, then give its seats to the waiting questions."""
        await child.wait_in_service()
        self._call_up()

    async def _seat(self, question: EpisodeQuestion) -> str:
        """Take a seat, and return the verifier's name. Waits until one is available."""
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
        """Give free seats to the waiting questions."""
        if not (there := self._there()):
            return
        for one in list(self._line):
            if (name := self._seats.take(one.question, there)) is not None:
                one.name = name
                del self._line[one]
                one.called.set()

    async def _wait_back(self) -> None:
        """Wait until a verifier is back and its seats are given."""
        async with trio.open_nursery() as nursery:

            async def wait(child: SupervisedChild) -> None:
                await self._return(child)
                nursery.cancel_scope.cancel()

            for child in self._children.values():
                nursery.start_soon(wait, child)

    def close(self) -> None:
        """Note that the verifiers are about to be ended."""
        self._closed = True

    async def _ready(self) -> SupervisedChild:
        """Return the next verifier that is idle and alive.

        A machine may go away with all its idle verifiers. Waiting for those would use up the question's time.
        """
        while (child := await self._idle.receive()).pid is None:
            self._nursery.start_soon(self._rest, child)
        return child

    async def _ask(self, child: SupervisedChild, question: _Question[T], within_s: float | None = None) -> T | Failure:
        """Ask a verifier, and return its answer. `within_s`: seconds that it may take; None: `timeout_s` + `late_s`."""
        within_s = self._terms.timeout_s + self._terms.late_s if within_s is None else within_s
        with trio.move_on_after(within_s) as scope:
            try:
                reply, _ = await child.call(question.op, question.header)
            except ChildRefused as refused:
                return Failure(how="timed_out" if refused.kind == "time" else "raised", detail=refused.error)
        if scope.cancelled_caught:
            child.end(f"it has not answered for {within_s:g} s")
            detail = f"no answer within {within_s - self._terms.late_s:g} s, and the verifier did not end itself"
            raise _NoAnswer(Failure(how="timed_out", detail=detail))
        for heard in read_remarks(reply.get("remarks")):
            self.on_remark(heard)
        try:
            return question.read(reply)
        except (KeyError, TypeError, ValueError) as error:
            what = f"its answer cannot be read ({type(error).__name__}: {error}); is it the same version of volery?"
            child.end(what)
            raise _NoAnswer(Failure(how="died", detail=what)) from None

    async def _rest(self, child: SupervisedChild) -> None:
        """Make the verifier available again, once it is back."""
        await child.wait_in_service()
        self._take.send_nowait(child)


class _NoAnswer(Exception):
    """The verifier neither answered in time nor ended, or its reply was no answer."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.detail)
        self.failure = failure


def _read_judgement(asked: Asked, reply: Header) -> Judgement | Failure:
    """Return the judgement. Raises KeyError, TypeError or ValueError if the reply does not answer the question."""
    return _read_told(reply, wants_reward=asked.wants_reward)


def _read_told(reply: Header, *, wants_reward: bool) -> Judgement | Failure:
    """Return the reward or the answer. Raises KeyError, TypeError or ValueError if the reply has neither."""
    if wants_reward and "unsaid" in reply:
        return Failure(how="unsaid", detail=str(reply["unsaid"]))
    if wants_reward:
        return read_reward(reply)
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
    """Return the judgement on an episode.

    Raises KeyError, TypeError or ValueError if the reply does not answer this question, for instance because it answers
    another one.
    """
    if reply["of"] != question.key:
        raise ValueError("it is the answer to another question")
    if "otherwise" in reply:
        detail = otherwise(question.task, question.place, int(reply["otherwise"]))
        return Failure(how="otherwise", detail=detail)
    return _read_told(reply, wants_reward=question.wants_reward)


def _read_problem(reply: Header) -> Problem:
    """Return the problem. Raises KeyError, TypeError or ValueError if the reply has none."""
    return Problem(
        prompt=read_conversation(reply["prompt"]), chat=Chat(reply["chat"]), tools=read_tools(reply.get("tools", ()))
    )


@asynccontextmanager
async def open_pool(
    commands: Sequence[tuple[str, Sequence[str]]],
    terms: PoolTerms,
    on_event: Callable[[str], Callable[[ChildEvent], None]] = lambda name: lambda event: None,
) -> AsyncIterator[VerifierPool]:
    """Start a verifier for each (name, command), wait until all have opened the tasks, and end them with the scope.

    `on_event(name)` returns the callback for the events of that verifier. Raises RunError when a verifier cannot be
    started, or has other tasks than this node.
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
    """Run one verifier for the pool."""
    spec = ChildSpec(
        name=name,
        argv=tuple(command),
        # Threads share two heaps. A heap for each thread would take 64 MiB of the process's limited address space.
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
        raise RunError(f"A verifier could not be started: {crash}") from crash


async def _prepare(terms: PoolTerms, child: ChildProcess) -> None:
    """Let a verifier open the tasks.

    Raises ChildRefused when it does not within `open_s`, or when its tasks differ from ours, since their rewards would
    differ, too.
    """
    with trio.move_on_after(terms.open_s) as scope:
        limits = {"environments": terms.environments, "idle_s": terms.idle_s, "at_once": terms.at_once}
        reply, _ = await child.call(
            "open", {"tasks": terms.tasks, "timeout_s": terms.timeout_s, "memory_gb": terms.memory_gb, **limits}
        )
    if scope.cancelled_caught:
        raise ChildRefused(
            "too_slow", f"it has not opened the tasks within {terms.open_s:g} s. Find out what it waits for."
        )
    theirs = reply.get("fingerprints")
    for title, fingerprint in terms.fingerprints.items():
        found = theirs.get(title) if isinstance(theirs, dict) else None
        if found != fingerprint:
            raise ChildRefused(
                "other_task",
                f"the verifier's task {title!r} differs from this node's ({found}, here {fingerprint}). Give its "
                "machine the same files at the same path, and the same versions of the task's packages.",
            )
