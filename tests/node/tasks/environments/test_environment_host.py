"""Run several environments at a time, with methods of either kind; every fault is told in a sentence."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from node.tasks.api.environment import Observation
from node.tasks.api.interface import Chat, ChatMessage, Problem, Spoken, TaskError
from node.tasks.environments.environment_host import EnvironmentHost, HostLimits, StepTimedOut, ask_alone
from node.tasks.environments.live_environments import Otherwise, Reply
from node.tasks.environments.question import EpisodeQuestion, digest_of_answer
from node.tasks.gate import Gate, Place
from node.tasks.grading import AnsweredOtherwise, Asked, grade
from tests.node.tasks.environments.test_live_environments import asked


@dataclass(kw_only=True)
class Counting:
    """Counts what it was told; goes on until "end"."""

    seed: int
    told: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    do: Callable[[str], Any] = lambda said: None

    def step(self, spoken: Spoken) -> Any:
        self.told.append(spoken.content)
        found = self.do(spoken.content)
        if found is not None:
            return found
        return None if spoken.content == "end" else f"{len(self.told)}"

    def reward(self) -> Any:
        return float(len(self.told))

    def close(self) -> None:
        self.closed.append(self.told[-1] if self.told else "")


@dataclass(kw_only=True)
class AsyncCounting(Counting):
    async def step(self, spoken: Spoken) -> Any:
        await asyncio.sleep(0)
        found = super().step(spoken)
        return await found if asyncio.iscoroutine(found) else found

    async def reward(self) -> Any:
        return super().reward()

    async def close(self) -> None:
        super().close()


@dataclass(kw_only=True)
class CountingTask:
    """Makes `kind`, and keeps what it made."""

    kind: type[Counting] = Counting
    do: Callable[[str], Any] = lambda said: None
    name: str = "counting"
    levels: int = 1
    fingerprint: str = "counting/1"
    made: list[Counting] = field(default_factory=list)

    def problem(self, index: int) -> Problem:
        return Problem(prompt=f"count {index}", chat=Chat.NEVER)

    def held_out(self, index: int) -> Problem:
        return Problem(prompt=f"held out {index}")

    def environment(self, problem: Problem, seed: int) -> Counting:
        self.made.append(self.kind(seed=seed, do=self.do))
        return self.made[-1]


def hosted(
    task: Any,
    use: Callable[[EnvironmentHost], Any],
    *,
    hang: Callable[[str], None] = lambda why: None,
    bad_end: Callable[[str], None] = lambda why: None,
    **changes: Any,
) -> Any:
    """What `use` returns with a host of that task."""

    async def run() -> Any:
        limits = HostLimits(**{"count": 4, "idle_s": 60.0, "at_once": 4, "step_s": 30.0, **changes})
        host = EnvironmentHost(gates={"t": Gate(task)}, limits=limits, on_hang=hang, on_bad_end=bad_end)
        try:
            return await use(host)
        finally:
            await host.close(5.0)

    return asyncio.run(run())


@pytest.mark.parametrize("kind", [Counting, AsyncCounting])
def test_an_episode_is_played_with_one_environment_and_closed_once(kind: type[Counting]) -> None:
    task = CountingTask(kind=kind)

    async def use(host: EnvironmentHost) -> None:
        assert await host.answer(asked("p")) == Reply(answer="1")
        assert await host.answer(asked("p", "q", answers=("1",))) == Reply(answer="2")
        assert await host.answer(asked("p", "q", "end", answers=("1", "2"))) == Reply(answer=None)
        assert await host.answer(asked("p", "q", "end", answers=("1", "2"), reward=True)) == Reply(answer=3.0)
        assert len(host) == 0

    hosted(task, use)
    [made] = task.made
    assert (made.told, made.closed) == (["p", "q", "end"], ["end"])


def test_the_seed_is_that_of_the_problem() -> None:
    task = CountingTask()

    async def use(host: EnvironmentHost) -> None:
        for place in (Place(index=7), Place(index=7), Place(index=8), Place(index=7, held_out=True)):
            await host.answer(asked("p", reward=True, place=place, said=("p", "q"), digests=(digest_of_answer("1"),)))
            host._core._past.clear()

    hosted(task, use)
    seeds = [made.seed for made in task.made]
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 3
    gate = Gate(task)
    assert seeds == [gate.seed(Place(index=7)), seeds[0], gate.seed(Place(index=8)), seeds[3]]


def test_one_that_waits_holds_up_no_other() -> None:
    release = threading.Event()

    def wait(said: str) -> None:
        if said == "wait":
            assert release.wait(30)

    async def use(host: EnvironmentHost) -> None:
        waiting = asyncio.create_task(host.answer(asked("wait")))
        assert await host.answer(asked("p")) == Reply(answer="1")
        assert not waiting.done()
        release.set()
        assert await waiting == Reply(answer="1")

    hosted(CountingTask(do=wait), use)


def test_who_asks_the_same_while_it_is_answered_shares_the_answer() -> None:
    task = CountingTask(kind=AsyncCounting)

    async def use(host: EnvironmentHost) -> None:
        assert await asyncio.gather(*(host.answer(asked("p")) for _ in range(4))) == [Reply(answer="1")] * 4

    hosted(task, use)
    assert len(task.made) == 1


def test_what_is_asked_beyond_the_seats_waits() -> None:
    task = CountingTask(kind=AsyncCounting)

    async def use(host: EnvironmentHost) -> None:
        found = await asyncio.gather(*(host.answer(asked(f"p{number}")) for number in range(20)))
        assert found == [Reply(answer="1")] * 20
        assert len(host) == 4

    hosted(task, use, at_once=2)
    assert sum(len(made.closed) for made in task.made) == 20, "all were closed in the end"


NASTY: dict[str, tuple[Any, str]] = {
    "raise": (
        KeyError("x"),
        r"task 'counting' failed at index 7, in `step`: KeyError: 'x' \(test_environment_host\.py, line ",
    ),
    "exit": (SystemExit(3), r"in `step`: SystemExit: 3"),
    "stop": (StopIteration(), r"in `step`: StopIteration"),
    "cancel": (asyncio.CancelledError(), r"in `step`: CancelledError"),
    "late": (TimeoutError("mine"), r"in `step`: TimeoutError: mine"),
    "own": (TaskError("what to do next"), r"^what to do next$"),
}


@pytest.mark.parametrize("kind", [Counting, AsyncCounting])
@pytest.mark.parametrize("what", NASTY)
def test_what_it_raises_is_told_and_it_is_closed(kind: type[Counting], what: str) -> None:
    error, told = NASTY[what]

    def fail(said: str) -> None:
        if said == "bad":
            raise error

    task = CountingTask(kind=kind, do=fail)

    async def use(host: EnvironmentHost) -> None:
        with pytest.raises(TaskError, match=told):
            await host.answer(asked("p", "bad", answers=("1",)))
        assert await host.answer(asked("p", "q", answers=("1",))) == Reply(answer="2"), "the next is answered"

    if kind is AsyncCounting and what == "stop":
        told = "RuntimeError"  # as Python has it
    hosted(task, use)
    assert [made.closed for made in task.made] == [["bad"], ["q"]]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (7, r"gave no answer at index 7, but 7 \(of type int\): `step` must return text, or messages"),
        ([{"role": "user"}], "gave no answer at index 7"),
        (Observation(), "gave no answer at index 7, but None"),
        ("x" * 50_000_000, "answered with 50,000,000 characters at index 7; the maximum is 1,000,000"),
    ],
)
def test_what_is_no_answer_is_told(found: object, told: str) -> None:
    async def use(host: EnvironmentHost) -> None:
        with pytest.raises(TaskError, match=told):
            await host.answer(asked("p"))

    hosted(CountingTask(do=lambda said: found), use)


def test_messages_and_an_end_that_is_said_are_answers() -> None:
    messages = (ChatMessage(role="tool", content="5", tool_call_id="a"),)
    found = {"m": messages, "l": list(messages), "o": Observation(answer="7"), "e": Observation(answer="8", over=True)}

    async def use(host: EnvironmentHost) -> None:
        for said, wanted in (("m", messages), ("l", messages), ("o", "7"), ("e", None)):
            assert await host.answer(asked(said)) == Reply(answer=wanted)

    hosted(CountingTask(do=lambda said: found[said]), use)


@pytest.mark.parametrize("reward", [float("nan"), None, "much", 1e30])
def test_what_is_no_reward_is_told(reward: object) -> None:
    class Odd(Counting):
        def reward(self) -> Any:
            return reward

    async def use(host: EnvironmentHost) -> None:
        with pytest.raises(TaskError, match=r"'counting' gave (no reward|the reward) .*index 7|at index 7"):
            await host.answer(asked("p", reward=True))

    hosted(CountingTask(kind=Odd), use)


def test_what_is_no_environment_is_told() -> None:
    task = CountingTask()
    task.environment = lambda problem, seed: object()  # type: ignore[assignment,method-assign,return-value]

    async def use(host: EnvironmentHost) -> None:
        with pytest.raises(TaskError, match="gave an environment at index 7 without `step`"):
            await host.answer(asked("p"))

    hosted(task, use)


def test_an_async_step_that_does_not_end_is_ended_and_the_process_stays() -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    hung: list[str] = []

    async def use(host: EnvironmentHost) -> None:
        with pytest.raises(StepTimedOut, match=r"`step` at index 7 did not end within 0.5 s") as caught:
            await host.answer(asked("p"))
        assert not caught.value.is_stuck

    task = CountingTask(kind=AsyncCounting, do=lambda said: forever())
    hosted(task, use, step_s=0.5, hang=hung.append)
    assert [made.closed for made in task.made] == [["p"]]
    assert hung == []


def test_a_plain_step_that_does_not_end_is_told_to_be_stuck() -> None:
    release = threading.Event()

    async def use(host: EnvironmentHost) -> None:
        with pytest.raises(StepTimedOut) as caught:
            await host.answer(asked("p"))
        assert caught.value.is_stuck
        release.set()

    hosted(CountingTask(do=lambda said: release.wait(30) and None), use, step_s=0.5)


def test_a_close_that_raises_is_told_and_so_is_one_that_does_not_end() -> None:
    release, hung, ended = threading.Event(), list[str](), list[str]()

    class Clinging(Counting):
        def close(self) -> None:
            if self.told == ["hang"]:
                assert release.wait(30)
            raise OSError("not mine")

    async def use(host: EnvironmentHost) -> None:
        assert await host.answer(asked("p", reward=True)) == Reply(answer=1.0)
        assert await host.answer(asked("hang", reward=True)) == Reply(answer=1.0)

    def hang(why: str) -> None:
        hung.append(why)
        release.set()

    hosted(CountingTask(kind=Clinging), use, step_s=1.0, hang=hang, bad_end=ended.append)
    assert any("in `close`: OSError: not mine" in why for why in ended)
    assert ["`close`" in why for why in hung] == [True]


def test_those_that_rest_are_closed() -> None:
    task = CountingTask(kind=AsyncCounting)

    async def use(host: EnvironmentHost) -> None:
        await host.answer(asked("p"))
        assert len(host) == 1
        while len(host) or not task.made[0].closed:
            await asyncio.sleep(0)

    hosted(task, use, idle_s=0.01)


# In the node itself, without anything that stays


def question(*said: str, answers: tuple[str, ...] = (), reward: bool = False) -> EpisodeQuestion:
    return asked(*said, answers=answers, reward=reward)


def test_without_verifiers_each_question_is_a_replay() -> None:
    task = CountingTask(kind=AsyncCounting)
    gate = Gate(task)
    assert ask_alone(gate, question("p", "q", answers=("1",))) == Reply(answer="2")
    assert ask_alone(gate, question("p", "q", answers=("1",), reward=True)) == Reply(answer=2.0)
    assert ask_alone(gate, question("p", "q", answers=("7",))) == Otherwise(turn=1)
    assert [made.closed for made in task.made] == [["q"], ["q"], ["p"]]


def test_grading_asks_environments_and_says_that_one_answers_otherwise() -> None:
    gate = Gate(CountingTask())
    one = Asked(index=7, held_out=False, said=("p",), finished=True, wants_reward=False)
    assert grade(gate, one) == "1"
    two = Asked(index=7, held_out=False, said=("p", "q"), finished=True, wants_reward=True, digests=("no",))
    with pytest.raises(AnsweredOtherwise, match="at index 7 was made again, and in turn 1 it answered differently"):
        grade(gate, two)


def test_what_a_task_with_environments_is() -> None:
    gate = Gate(CountingTask())
    assert (gate.has_turns, gate.has_environments, gate.is_cheap) == (True, True, False)
