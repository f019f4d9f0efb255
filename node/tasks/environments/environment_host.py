"""Run the environments of this process on one asyncio loop, several at a time, and await rewards that are `async`.

Invariants:

- `node.tasks.environments.live_environments` decides which environment answers.
- Methods of one environment are called one after the other: `async` ones on the loop, plain ones on threads. So an
  environment that waits for its tool does not delay others.
- Every call ends within `step_s` or fails. A thread cannot be ended; then `on_hang` is called, which ends the process.
- Everything that a task's code raises or wrongly returns becomes a TaskError that names the problem
  (`node.tasks.gate`).
- An environment is closed once. An exception of its `close` is passed to `on_bad_end`.
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
"""Seconds for a busy loop to notice that a call took too long, and for cancelled work to end."""


class StepTimedOut(TaskError):
    """A method of an environment took longer than `step_s`. `is_stuck`: its thread goes on, and nothing can end it."""

    def __init__(self, message: str, *, is_stuck: bool) -> None:
        super().__init__(message)
        self.is_stuck = is_stuck


@dataclass(frozen=True, kw_only=True)
class HostLimits:
    """`count`: maximum environments alive. `idle_s`: seconds after which an idle one is closed. `at_once`: questions
    answered at a time. `step_s`: maximum seconds of one call."""

    count: int
    idle_s: float
    at_once: int
    step_s: float


def _ignore(message: str) -> None:
    """Do nothing: the default for callers that need not know."""


@dataclass(kw_only=True)
class EnvironmentHost:
    """The environments of this process. `gates`: of tasks, by title. Use and close it on one loop."""

    gates: Mapping[str, Gate]
    limits: HostLimits
    on_hang: Callable[[str], None] = _ignore
    on_bad_end: Callable[[str], None] = _ignore
    watch: Callable[[float], AbstractContextManager[None]] = lambda seconds: nullcontext()
    """Ends the process if a call is not ended here within GRACE_S after `step_s`."""
    _core: LiveEnvironments = field(init=False)
    _alive: dict[EnvironmentId, _Alive] = field(default_factory=dict)
    _at_work: dict[EnvironmentId, asyncio.Event] = field(default_factory=dict)
    """Set when the question on which it works is done."""
    _seats: asyncio.Semaphore = field(init=False)
    _threads: ThreadPoolExecutor = field(init=False)
    _closings: set[asyncio.Task[None]] = field(default_factory=set)
    _look: asyncio.TimerHandle | None = None

    def __post_init__(self) -> None:
        limits = self.limits
        self._core = LiveEnvironments(count=max(limits.count, limits.at_once), idle_s=limits.idle_s)
        self._seats = asyncio.Semaphore(limits.at_once)
        # Environments that are being closed need threads too.
        self._threads = ThreadPoolExecutor(2 * limits.at_once, thread_name_prefix="environment")

    def __len__(self) -> int:
        """Return how many are alive."""
        return len(self._alive)

    async def answer(self, question: EpisodeQuestion) -> Reply | Otherwise:
        """Return the reply to a question. Raises TaskError if an environment fails, also StepTimedOut."""
        async with self._seats:
            plan = self._core.begin(question, self._now())
            if isinstance(plan, Wait):
                await self._at_work[plan.environment].wait()
                plan = self._core.begin(question, self._now(), may_wait=False)
            if isinstance(plan, Reply):
                return plan
            assert not isinstance(plan, Wait), "the second call may not wait"
            for number in plan.closing:
                self._let_go(number)
            async with self._working(plan.environment):
                if plan.is_new:
                    self._alive[plan.environment] = await self._make(question)
                return await self._go_on(plan.environment, question, plan.first)

    async def judge(self, asked: EpisodeQuestion) -> Reply:
        """Return the reward of a transcript, for a task whose reward is `async`. Raises TaskError like `answer`."""
        gate, place = self.gates[asked.task], asked.place
        async with self._seats:
            again = partial(read_back, gate, place, asked.said, finished=asked.finished)
            problem, completion = await self._call(gate, place, "answer_turn", again)
            found = await self._call(gate, place, "reward", gate.rewarder, problem, completion)
            return Reply(answer=gate.reward_of(place, found))

    async def close(self, timeout_s: float) -> None:
        """Close all that are alive, and wait for that at most `timeout_s`."""
        if self._look is not None:
            self._look.cancel()
        for number in list(self._alive):
            self._let_go(number)
        if self._closings:
            await asyncio.wait(self._closings, timeout=timeout_s)
        self._threads.shutdown(wait=False, cancel_futures=True)

    @asynccontextmanager
    async def _working(self, number: EnvironmentId) -> AsyncIterator[None]:
        """Wake those who wait for the environment when the work inside ends. Forget the environment if that fails."""
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
        # Called in this way because a task may have to ask a server for its problem, and the loop must not wait.
        problem = await self._call(gate, place, "problem", gate.problem, place)
        made = await self._call(gate, place, "environment", gate.maker, problem, gate.seed(place))
        for part in ("step", "reward"):
            if not callable(getattr(made, part, None)):
                raise TaskError(
                    f"task {gate.name!r} gave an environment at {place} without `{part}`; see "
                    "docs/operate/write-a-task.md."
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
                    next_ = self._core.rewarded(number, gate.reward_of(place, found))
                    self._let_go(number)
                case Otherwise():
                    self._let_go(number)
                    return next_
                case Reply():
                    return next_

    def _heard(self, number: EnvironmentId, gate: Gate, place: Place, answer: Answer | None) -> Next:
        try:
            return self._core.answered(number, answer, self._now())
        except (TypeError, ValueError) as error:  # from arguments of a call that JSON cannot write
            raise gate.failed(place, "step", error) from error

    async def _call(self, gate: Gate, place: Place, part: str, method: Callable[..., Any], *arguments: object) -> Any:
        """Call a task's own method. Its errors become a TaskError; StepTimedOut if it takes too long."""
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
                raise  # this task itself was cancelled
            raise gate.failed(place, part, error) from error
        except BaseException as error:  # SystemExit would end the process
            raise gate.failed(place, part, error) from error

    def _let_go(self, number: EnvironmentId) -> None:
        """Close the environment in the background."""
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
        """Schedule the closing of idle environments."""
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
    """An environment and its problem. `tools`: names of all tools that may be called in it."""

    gate: Gate
    place: Place
    environment: Any
    tools: frozenset[str]


def _spoken(question: EpisodeQuestion, said: str, tools: frozenset[str]) -> Spoken:
    if question.tool_format is None:
        return Spoken(content=said)
    return read_spoken(question.tool_format, said, tools=tools, in_thinking=question.in_thinking)


def _captured(method: Callable[..., Any], arguments: tuple[object, ...]) -> tuple[Any, BaseException | None]:
    """Return (result, error) of a call, because a thread's future treats some exceptions as its own."""
    try:
        return method(*arguments), None
    except BaseException as error:
        return None, error


def ask_alone(gate: Gate, question: EpisodeQuestion) -> Reply | Otherwise:
    """Return the reply of an environment that is made for this question and then closed. Raises TaskError. Waits."""

    async def ask() -> Reply | Otherwise:
        limits = HostLimits(count=1, idle_s=1e9, at_once=1, step_s=1e9)
        host = EnvironmentHost(gates={question.task: gate}, limits=limits)
        try:
            return await host.answer(question)
        finally:
            await host.close(CLOSE_S)

    return asyncio.run(ask())


CLOSE_S = 5.0
"""Seconds that an environment may take to close when nothing else depends on it."""
