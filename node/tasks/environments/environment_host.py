"""Environments that are alive in this process, on one asyncio loop, several at work at a time, and rewards that are
`async`, which are waited for there.

What always holds: which of them answers is decided by `node.tasks.environments.live_environments`; methods of one
environment are called one after the other, `async` ones on the loop, plain ones on threads, so one that waits for a
tool holds up no other; every call ends within `step_s` or fails, and one that cannot be ended, since a thread cannot,
is told to `on_hang`, which ends the process; whatever a task's code raises or returns is a TaskError that names the
problem (`node.tasks.gate`); an environment is closed once, and what it raises then is told to `on_bad_end`.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from node.tasks.api.interface import Answer, Spoken, TaskError
from node.tasks.environments.live_environments import (
    EnvironmentId,
    LiveEnvironments,
    Next,
    Otherwise,
    Reply,
    Step,
    TellReward,
    Wait,
)
from node.tasks.environments.question import EpisodeQuestion
from node.tasks.environments.transcript import read_back
from node.tasks.gate import Gate, Place
from node.tasks.tools.reading import read_spoken

GRACE_S = 2.0
"""For a loop that is held up to find out that a call has taken too long, and for what was cancelled to end."""


class StepTimedOut(TaskError):
    """A method of an environment took longer than it may. `is_stuck`: its thread goes on, and nothing can end it."""

    def __init__(self, message: str, *, is_stuck: bool) -> None:
        super().__init__(message)
        self.is_stuck = is_stuck


@dataclass(frozen=True, kw_only=True)
class HostLimits:
    """`count` environments are alive at most, and those that rest are closed after `idle_s`; `at_once` questions are
    answered at a time; a call takes `step_s` at most."""

    count: int
    idle_s: float
    at_once: int
    step_s: float


def _ignore(message: str) -> None:
    """Where nothing ends, nobody needs to hear of it."""


@dataclass(kw_only=True)
class EnvironmentHost:
    """See the module's paragraph. `gates` of tasks by title. To be used on one loop, and closed there."""

    gates: Mapping[str, Gate]
    limits: HostLimits
    on_hang: Callable[[str], None] = _ignore
    on_bad_end: Callable[[str], None] = _ignore
    watch: Callable[[float], AbstractContextManager[None]] = lambda seconds: nullcontext()
    """What ends the process where a call takes longer and nothing here can end it: GRACE_S after `step_s`."""
    _core: LiveEnvironments = field(init=False)
    _alive: dict[EnvironmentId, _Alive] = field(default_factory=dict)
    _at_work: dict[EnvironmentId, asyncio.Event] = field(default_factory=dict)
    """Set when the question that works with it is done."""
    _seats: asyncio.Semaphore = field(init=False)
    _threads: ThreadPoolExecutor = field(init=False)
    _closings: set[asyncio.Task[None]] = field(default_factory=set)
    _look: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        limits = self.limits
        self._core = LiveEnvironments(count=max(limits.count, limits.at_once), idle_s=limits.idle_s)
        self._seats = asyncio.Semaphore(limits.at_once)
        # Those that are closed need some, too.
        self._threads = ThreadPoolExecutor(2 * limits.at_once, thread_name_prefix="environment")

    def __len__(self) -> int:
        """How many are alive."""
        return len(self._alive)

    async def answer(self, question: EpisodeQuestion) -> Reply | Otherwise:
        """What comes back. Raises TaskError when an environment fails, StepTimedOut among others."""
        async with self._seats:
            plan = self._core.begin(question, self._now())
            if isinstance(plan, Wait):
                await self._at_work[plan.environment].wait()
                plan = self._core.begin(question, self._now(), may_wait=False)
            if isinstance(plan, Reply):
                return plan
            assert not isinstance(plan, Wait), "nobody waits twice"
            for number in plan.closing:
                self._let_go(number)
            async with self._working(plan.environment):
                if plan.is_new:
                    self._alive[plan.environment] = await self._make(question)
                return await self._go_on(plan.environment, question, plan.first)

    async def judge(self, asked: EpisodeQuestion) -> Reply:
        """What a transcript is worth, of a task whose reward is `async`. Raises TaskError as `answer` does."""
        gate, place = self.gates[asked.task], asked.place
        async with self._seats:
            again = partial(read_back, gate, place, asked.said, finished=asked.finished)
            problem, completion = await self._call(gate, place, "answer_turn", again)
            found = await self._call(gate, place, "reward", gate.rewarder, problem, completion)
            return Reply(answer=gate.worth(place, found))

    async def close(self, timeout_s: float) -> None:
        """Close all that are alive, as far as they take no longer than that."""
        if self._look is not None:
            self._look.cancel()
        for number in list(self._alive):
            self._let_go(number)
        if self._closings:
            await asyncio.wait(self._closings, timeout=timeout_s)
        self._threads.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def _working(self, number: EnvironmentId) -> AsyncIterator[None]:
        """Whatever happens inside, those who wait for that environment are told, and one that failed is gone."""
        done = self._at_work[number] = asyncio.Event()
        try:
            yield
        except BaseException:
            self._core.lost(number)
            self._let_go(number)
            raise
        finally:
            del self._at_work[number]
            done.set()
            self._look_later()

    async def _make(self, question: EpisodeQuestion) -> _Alive:
        gate, place = self.gates[question.task], question.place
        # The loop never waits for it: a task may have to ask a server what an episode begins with.
        problem = await self._call(gate, place, "problem", gate.problem, place)
        made = await self._call(gate, place, "environment", gate.maker, problem, gate.seed(place))
        for part in ("step", "reward"):
            if not callable(getattr(made, part, None)):
                raise TaskError(
                    f"task {gate.name!r} gave an environment at {place} without `{part}`; see docs/tasks.md."
                )
        return _Alive(gate=gate, place=place, environment=made, tools=gate.tools_of(place, problem, made))

    async def _go_on(self, number: EnvironmentId, question: EpisodeQuestion, first: Next) -> Reply | Otherwise:
        alive, next_ = self._alive[number], first
        gate, place, environment = alive.gate, alive.place, alive.environment
        while True:
            match next_:
                case Step(said=said):
                    spoken = _spoken(question, said, alive.tools)
                    found = await self._call(gate, place, "step", environment.step, spoken)
                    next_ = self._heard(number, gate, place, gate.observed(place, found))
                case TellReward():
                    found = await self._call(gate, place, "reward", environment.reward)
                    next_ = self._core.rewarded(number, gate.worth(place, found))
                    self._let_go(number)
                case Otherwise():
                    self._let_go(number)
                    return next_
                case Reply():
                    return next_

    def _heard(self, number: EnvironmentId, gate: Gate, place: Place, answer: Answer | None) -> Next:
        try:
            return self._core.answered(number, answer, self._now())
        except (TypeError, ValueError) as error:  # arguments of a call that JSON cannot write
            raise gate.failed(place, "step", error) from error

    async def _call(self, gate: Gate, place: Place, part: str, method: Callable[..., Any], *arguments: object) -> Any:
        """Call a method of a task's own. Raises TaskError for what it raises, StepTimedOut where it does not end."""
        running: Awaitable[Any] | None = None
        try:
            with self.watch(self.limits.step_s + GRACE_S):
                async with asyncio.timeout(self.limits.step_s) as limit:
                    if inspect.iscoroutinefunction(method):
                        return await method(*arguments)
                    running = asyncio.get_running_loop().run_in_executor(self._threads, _captured, method, arguments)
                    found, error = await asyncio.shield(running)
                    running = None
                    if error is not None:
                        raise error
                    return await found if inspect.isawaitable(found) else found
        except TimeoutError as error:
            if not limit.expired():
                raise gate.failed(place, part, error) from error
            message = f"task {gate.name!r}: `{part}` at {place} did not end within {self.limits.step_s:g} s"
            raise StepTimedOut(message, is_stuck=running is not None) from None
        except asyncio.CancelledError as error:
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise  # we are told to end
            raise gate.failed(place, part, error) from error
        except BaseException as error:  # SystemExit, too, would end the process
            raise gate.failed(place, part, error) from error

    def _let_go(self, number: EnvironmentId) -> None:
        """Close it, beside whatever else goes on."""
        if (alive := self._alive.pop(number, None)) is None:
            return
        closing = asyncio.get_running_loop().create_task(self._close(alive))
        self._closings.add(closing)
        closing.add_done_callback(self._closings.discard)

    async def _close(self, alive: _Alive) -> None:
        if not callable(close := getattr(alive.environment, "close", None)):
            return
        try:
            await self._call(alive.gate, alive.place, "close", close)
        except StepTimedOut as error:
            if error.is_stuck:
                self.on_hang(str(error))
        except TaskError as error:
            self.on_bad_end(str(error))

    def _look_later(self) -> None:
        """See to it that those which rest are closed in time."""
        if self._look is None and len(self._core):
            self._look = asyncio.get_running_loop().call_later(self.limits.idle_s, self._expire)

    def _expire(self) -> None:
        self._look = None
        for number in self._core.expire(self._now()):
            self._let_go(number)
        self._look_later()

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


@dataclass(frozen=True, kw_only=True)
class _Alive:
    """An environment, and whose it is. `tools`: names of all that may be called in it."""

    gate: Gate
    place: Place
    environment: Any
    tools: frozenset[str]


def _spoken(question: EpisodeQuestion, said: str, tools: frozenset[str]) -> Spoken:
    if question.tool_format is None:
        return Spoken(content=said)
    return read_spoken(question.tool_format, said, tools=tools, in_thinking=question.in_thinking)


def _captured(method: Callable[..., Any], arguments: tuple[object, ...]) -> tuple[Any, BaseException | None]:
    """What it returns or raises: a thread's future treats some exceptions as its own."""
    try:
        return method(*arguments), None
    except BaseException as error:
        return None, error


def ask_alone(gate: Gate, question: EpisodeQuestion) -> Reply | Otherwise:
    """The answer of an environment that is made for this question and closed after it. Raises TaskError. Waits."""

    async def ask() -> Reply | Otherwise:
        limits = HostLimits(count=1, idle_s=1e9, at_once=1, step_s=1e9)
        host = EnvironmentHost(gates={question.task: gate}, limits=limits)
        try:
            return await host.answer(question)
        finally:
            await host.close(CLOSE_S)

    return asyncio.run(ask())


CLOSE_S = 5.0
"""What an environment may take to close where nothing else waits for it."""
