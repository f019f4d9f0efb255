"""Environments of the real package verifiers as tasks. `make test-adapters` installs it; elsewhere this is skipped."""

from __future__ import annotations

import asyncio
import importlib
import signal
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from typing import Any, TypeVar

import pytest

from node.tasks.adapters.verifiers.episode import VerifiersEpisode
from node.tasks.adapters.verifiers.task import VerifiersTask
from node.tasks.api.interface import ChatMessage, Spoken, TaskError, ToolCall
from node.tasks.environments.environment_host import EnvironmentHost, HostLimits, StepTimedOut, ask_alone
from node.tasks.environments.live_environments import Reply
from node.tasks.environments.question import EpisodeQuestion, digest_of_answer
from node.tasks.gate import Gate, Place
from node.tasks.registry import open_task
from tests.support.paths import ROOT

CASES = ROOT / "tests" / "support" / "adapters"
EXAMPLE = ROOT / "docs" / "examples" / "tasks"

T = TypeVar("T")

needs_package = pytest.mark.skipif(
    find_spec("verifiers") is None, reason="verifiers is not installed; `make test-adapters` installs it"
)


def opened(kind: str, options: str = "") -> VerifiersTask:
    task: Any = open_task(f"verifiers:vf_cases:kind={kind}{options}", directory=CASES)
    assert isinstance(task, VerifiersTask)
    return task


def played(kind: str, play: Callable[[VerifiersEpisode], Awaitable[T]], index: int = 0) -> T:
    """What `play` returns of an episode of that kind of environment."""
    task = opened(kind)

    async def main() -> T:
        episode = await task.environment(task.problem(index), 1)
        try:
            return await play(episode)
        finally:
            await episode.close()

    return asyncio.run(main())


def calling(*arguments: dict[str, Any]) -> Spoken:
    calls = [ToolCall(id=f"call{n:05}", name="add", arguments=each) for n, each in enumerate(arguments)]
    return Spoken(content="", calls=tuple(calls))


def total(task: VerifiersTask, reward: Any) -> float:
    """One number, also where rewards have names."""
    if isinstance(reward, dict):
        return sum(value * task.reward_weights.get(name, 1.0) for name, value in reward.items())
    return float(reward)


@pytest.mark.skipif(find_spec("verifiers") is not None, reason="verifiers is installed here")
def test_without_the_package_it_is_said_how_to_install_it() -> None:
    with pytest.raises(TaskError, match=r"Run: pip install 'verifiers>=0\.1\.14,<0\.4'"):
        open_task("verifiers:vf_cases", directory=CASES)


# Problems


@needs_package
def test_a_row_is_a_problem_and_no_prompt_is_on_both_sides() -> None:
    task = opened("single", ",held_out=0.2")
    assert (task.size, task.num_held_out) == (16, 4)
    sides = [{task.problem(n).prompt for n in range(40)}, {task.held_out(n).prompt for n in range(40)}]
    assert [len(side) for side in sides] == [16, 4]
    assert not sides[0] & sides[1]
    assert all(isinstance(prompt, tuple) and prompt[0].role == "user" for prompt in sides[0])


@needs_package
def test_a_data_set_for_evaluation_is_held_out_and_its_prompts_are_not_trained_on() -> None:
    task = opened("eval")
    assert (task.size, task.num_held_out) == (15, 5)
    assert {task.held_out(n).prompt for n in range(5)}.isdisjoint(task.problem(n).prompt for n in range(15))
    assert "15 problems to train on, 5 held out" in task.notes[0]


@needs_package
def test_the_fingerprint_follows_the_rows_and_the_options() -> None:
    assert opened("single").fingerprint == opened("single").fingerprint
    others = {opened(*one).fingerprint for one in (("single",), ("single", ",rows=19"), ("tool",), ("eval",))}
    assert len(others) == 4


@needs_package
def test_loading_leaves_signals_alone() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    opened("single")
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


# Episodes


@needs_package
def test_one_turn_is_scored_by_weighted_functions() -> None:
    task = opened("single")

    async def right(episode: VerifiersEpisode) -> float:
        answer = dict(episode.row)["answer"]
        assert await episode.step(Spoken(content=answer)) is None
        return total(task, await episode.reward())

    async def wrong(episode: VerifiersEpisode) -> float:
        assert await episode.step(Spoken(content="?")) is None
        return total(task, await episode.reward())

    assert dict(task.reward_weights) == {"exact": 1.0, "short": 0.5, "num_turns": 0.0}
    assert played("single", right) == 1.5
    assert played("single", wrong) == 0.5


@needs_package
def test_several_turns_are_read_one_by_one() -> None:
    async def play(episode: VerifiersEpisode) -> list[Any]:
        return [await episode.step(Spoken(content=text)) for text in ("a", "b", "stop")]

    first, second, last = played("counting", play)
    assert first == (ChatMessage(role="user", content="turn 1"),)
    assert second == (ChatMessage(role="user", content="turn 2"),)
    assert last is None


@needs_package
def test_its_own_limit_of_turns_ends_an_episode() -> None:
    async def play(episode: VerifiersEpisode) -> list[bool]:
        return [await episode.step(Spoken(content=text)) is None for text in "abc"]

    assert played("counting", play) == [False, False, True]


@needs_package
def test_tools_are_called_and_answer() -> None:
    task = opened("tool")
    assert [tool.name for tool in task.problem(0).tools] == ["add"]

    async def play(episode: VerifiersEpisode) -> list[Any]:
        return [
            await episode.step(calling({"a": 1, "b": 2}, {"a": 1, "c": 2})),
            await episode.step(Spoken(content="3")),
            await episode.reward(),
        ]

    results, end, reward = played("tool", play)
    assert [(one.role, one.name, one.tool_call_id) for one in results] == [
        ("tool", "add", "call00000"),
        ("tool", "add", "call00001"),
    ]
    assert results[0].content == "3"
    assert "unexpected keyword" in results[1].content
    assert end is None
    assert total(task, reward) == 0.5, "which is not what row 0 asks for, and short"


@needs_package
def test_an_episode_that_the_operators_limits_end_is_scored_as_it_is() -> None:
    task = opened("tool")

    async def later(episode: VerifiersEpisode) -> float:
        await episode.step(calling({"a": 1, "b": 2}))
        return total(task, await episode.reward())

    async def at_once(episode: VerifiersEpisode) -> float:
        return total(task, await episode.reward())

    assert played("tool", later) == 0.5
    assert played("tool", at_once) == 0.5


@needs_package
def test_prompts_of_plain_text() -> None:
    async def play(episode: VerifiersEpisode) -> Any:
        assert isinstance(episode.problem.prompt, str)
        await episode.step(Spoken(content="x"))
        return await episode.reward()

    assert played("completion", play) is not None


@needs_package
def test_an_abandoned_episode_leaves_no_rollout_behind() -> None:
    async def play(episode: VerifiersEpisode) -> bool:
        await episode.step(Spoken(content="a"))
        await episode.close()
        return all(task is asyncio.current_task() for task in asyncio.all_tasks())

    assert played("counting", play)


@needs_package
def test_through_the_gate_a_replayed_episode_answers_the_same() -> None:
    gate = Gate(opened("counting"))  # type: ignore[arg-type]

    def asked(*said: str, digests: tuple[str, ...] = (), wants_reward: bool = False) -> EpisodeQuestion:
        return EpisodeQuestion(
            task="t", place=Place(index=0), said=said, digests=digests, finished=True, wants_reward=wants_reward
        )

    first = ask_alone(gate, asked("a"))
    assert isinstance(first, Reply)
    assert not isinstance(first.answer, float)
    digests = (digest_of_answer(first.answer),)
    again = ask_alone(gate, asked("a", "stop", digests=digests))
    assert isinstance(again, Reply)
    assert again.answer is None
    worth = ask_alone(gate, asked("a", "stop", digests=digests, wants_reward=True))
    assert isinstance(worth, Reply)
    assert worth.answer == 0.0


@needs_package
def test_one_that_hangs_is_given_up_and_cleaned_up() -> None:
    gate = Gate(opened("hanging"))  # type: ignore[arg-type]
    cleaned: list[str] = importlib.import_module("vf_cases").Hanging.cleaned
    cleaned.clear()

    async def main() -> None:
        limits = HostLimits(count=2, idle_s=60.0, at_once=1, step_s=0.2)
        host = EnvironmentHost(gates={"t": gate}, limits=limits)
        question = EpisodeQuestion(
            task="t", place=Place(index=0), said=("a",), digests=(), finished=True, wants_reward=False
        )
        with pytest.raises(StepTimedOut, match=r"`step` at index 0 did not end within 0\.2 s"):
            await host.answer(question)
        await host.close(5.0)

    asyncio.run(main())
    assert len(cleaned) == 1


# What goes wrong


@needs_package
def test_a_policy_that_calls_badly_is_scored_where_the_environment_stops_for_it() -> None:
    task = opened("stopping")

    async def play(episode: VerifiersEpisode) -> Any:
        assert await episode.step(calling({"c": 1})) is None
        return await episode.reward()

    assert total(task, played("stopping", play)) == 0.5


FAILING = {
    "broken": ("counting", "broken", "failed: InfraError: its server is gone"),
    "rewriting": ("rewriting", "a", "has rewritten the conversation"),
    "otherwise": ("otherwise", "a", "begins unlike its data set: message 1"),
    "gathering": ("gathering", "a", "asks for several answers at once"),
    "direct": ("direct", "a", "speaks to a model's server itself"),
}


@needs_package
@pytest.mark.parametrize(("kind", "said", "told"), FAILING.values(), ids=FAILING)
def test_what_cannot_be_played_fails_its_episode(kind: str, said: str, told: str) -> None:
    async def play(episode: VerifiersEpisode) -> None:
        while await episode.step(Spoken(content=said)) is not None:
            pass

    with pytest.raises(TaskError) as failed:
        played(kind, play)
    assert told in str(failed.value)


REFUSED = {
    "compared": "compare the rollouts of a group",
    "unrewarded": "a rubric without a reward",
    "eval_alone": "has no data set to train on",
    "picture": "a part of type 'image_url'",
    "group": "name them one by one, under [[task.mixture]]",
    "nothing": "gave something of type SimpleNamespace, which has no rollout",
    "missing": "cannot be loaded: ValueError: no kind 'missing'",
}


@needs_package
@pytest.mark.parametrize(("kind", "told"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_work_is_refused_at_the_start(kind: str, told: str) -> None:
    with pytest.raises(TaskError) as refused:
        opened(kind)
    assert told in str(refused.value)


@needs_package
def test_an_environment_that_is_not_there() -> None:
    with pytest.raises(TaskError, match=r"'no-such' cannot be loaded: ModuleNotFoundError: No module named 'no_such'"):
        open_task("verifiers:no-such", directory=CASES)


@needs_package
def test_what_is_ignored_is_told() -> None:
    told = " ".join(opened("limited").notes)
    assert "its sampling arguments (temperature) are ignored" in told
    assert "its limit of 7 s for a rollout is ignored" in told


@needs_package
@pytest.mark.parametrize(("kind", "worth"), [("twice", 0.75), ("failing", 1.0)], ids=["twice", "failing"])
def test_rewards_without_names_of_their_own_are_a_total(kind: str, worth: float) -> None:
    task = opened(kind)

    async def play(episode: VerifiersEpisode) -> Any:
        await episode.step(Spoken(content="?"))
        return await episode.reward()

    assert bool(task.reward_weights) == (kind == "failing")
    assert total(task, played(kind, play)) == worth


@needs_package
def test_the_example_has_rewards_by_name() -> None:
    task: Any = open_task("verifiers:shop-env:rows=40", directory=EXAMPLE)
    weights = dict(task.reward_weights)
    assert {name: weights[name] for name in ("right_sum", "looked_up", "spoke_briefly")} == {
        "right_sum": 1.0,
        "looked_up": 0.2,
        "spoke_briefly": 0.1,
    }
    assert task.num_held_out > 0
