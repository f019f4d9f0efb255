"""Gymnasium itself, with its own environments and some that are registered here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from node.tasks.adapters.gymnasium_text import GymnasiumTask
from node.tasks.api.interface import Spoken, TaskError
from node.tasks.environments.environment_host import ask_alone
from node.tasks.environments.live_environments import Reply
from node.tasks.environments.question import EpisodeQuestion, digest_of_answer
from node.tasks.gate import Gate, Place
from node.tasks.registry import open_task

gymnasium: Any = pytest.importorskip("gymnasium", reason="make test-adapters has it")

LAKE = "gymnasium:FrozenLake-v1:actions=left|down|right|up,is_slippery=false"
TO_THE_GOAL = ("down", "down", "right", "right", "down", "right")


class Echo(gymnasium.Env):  # type: ignore[misc]
    """Says its seed, or 0 where it is `forgetful`, and repeats what was said."""

    observation_space = gymnasium.spaces.Text(max_length=100)
    action_space = gymnasium.spaces.Text(min_length=1, max_length=3)
    resets = 0

    def __init__(self, mood: str = "") -> None:
        self.mood = mood

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        Echo.resets += 1
        if self.mood == "sick":
            raise RuntimeError("no start")
        return (str(Echo.resets) if self.mood == "forgetful" else f"seed {seed}"), {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float("nan") if self.mood == "nan" else 2.0
        return (["no text"] if self.mood == "odd" else action), reward, action == "end", False, {}


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    gymnasium.register("Echo-v0", entry_point=Echo, disable_env_checker=True)
    yield
    del gymnasium.registry["Echo-v0"]


def opened(spec: str, directory: Path | None = None) -> GymnasiumTask:
    task: Any = open_task(spec, directory=directory)
    assert isinstance(task, GymnasiumTask)
    return task


def played(task: GymnasiumTask, *said: str) -> tuple[list[str | None], float]:
    world = task.environment(task.problem(0), 0)
    answers = [world.step(Spoken(content=words)) for words in said]
    world.close()
    return answers, world.reward()


def test_a_lake_is_crossed_in_words() -> None:
    task = opened(LAKE)
    board = "\n<red>S</red>FFF\nFHFH\nFFFH\nHFFG\n"
    assert task.problem(0).prompt == f"{board}Say one of: left, down, right, up.\n"
    answers, reward = played(task, *TO_THE_GOAL)
    assert answers[0] == "  (Down)\nSFFF\n<red>F</red>HFH\nFFFH\nHFFG\n"
    assert answers[-1] is None
    assert reward == 1.0


def test_a_lake_through_the_gate_and_again() -> None:
    gate = Gate(open_task(LAKE))
    assert gate.has_environments
    said, digests = list[str](), list[str]()
    for words in TO_THE_GOAL:
        said.append(words)
        question = EpisodeQuestion(
            task="lake", place=Place(index=3), said=tuple(said), digests=tuple(digests), finished=True,
            wants_reward=False,
        )  # fmt: skip
        reply = ask_alone(gate, question)
        assert isinstance(reply, Reply)
        assert not isinstance(reply.answer, float)
        digests.append(digest_of_answer(reply.answer))
    assert digests[-1] == "", "the episode is over"


def test_a_taxi_is_driven_by_numbers_and_its_starts_are_held_out() -> None:
    task = opened("gymnasium:Taxi-v4:scale=10")
    assert task.is_split
    training = {task.problem(index).prompt for index in range(40)}
    assert not training & {task.held_out(index).prompt for index in range(10)}
    answers, reward = played(task, "1", "hm", "7", "0")
    assert answers[1] == answers[2] == "Say a whole number from 0 to 5."
    assert reward == -0.2


def test_steps_are_bounded_by_what_is_registered_or_the_spec() -> None:
    assert played(opened(f"{LAKE},steps=2"), "up", "up")[0][-1] is None


def test_text_is_said_and_read_as_it_is() -> None:
    task = opened("gymnasium:Echo-v0")
    problem = task.problem(0)
    assert str(problem.prompt).startswith(f"seed {problem.seed}\nSay 1 to 3 characters")
    assert played(task, "abc", "too long", "end") == (["abc", task.hint, None], 4.0)
    assert played(opened("gymnasium:Echo-v0:reward=last"), "abc", "abc")[1] == 2.0
    assert played(opened("gymnasium:Echo-v0:unreadable=end"), "too long") == ([None], 0.0)


def test_turns_without_an_action_end_the_episode_at_last() -> None:
    task = opened("gymnasium:Echo-v0")
    hint = task.hint
    assert played(task, "", "", "abc", "", "", "")[0] == [hint, hint, "abc", hint, hint, None]


def test_the_same_index_is_the_same_in_another_task() -> None:
    ours, theirs = opened("gymnasium:Taxi-v4"), opened("gymnasium:Taxi-v4")
    assert ours.fingerprint == theirs.fingerprint
    assert ours.problem(7) == theirs.problem(7)
    others = [opened("gymnasium:Taxi-v4:is_rainy=true"), opened(LAKE)]
    assert len({ours.fingerprint, *(other.fingerprint for other in others)}) == 3


MODULE = """
import gymnasium
from gymnasium.spaces import Discrete, Text

class Coin(gymnasium.Env):
    observation_space, action_space = Text(max_length=9), Discrete(2, start=1)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return f"coin {self.np_random.integers(2)}", {}
    def step(self, action):
        return "done", 1.0, True, False, {}

gymnasium.register("Coin-v0", entry_point=Coin)
"""


def test_a_module_beside_the_swarm_registers_what_it_has(tmp_path: Path) -> None:
    (tmp_path / "coin_module.py").write_text(MODULE)
    task = opened("gymnasium:coin_module:Coin-v0:actions=heads|tails", tmp_path)
    assert not task.is_split
    assert played(task, "tails") == ([None], 1.0)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("gymnasium:FrozenLake-v9", "there is no environment 'FrozenLake-v9'.*did you mean 'FrozenLake-v1'"),
        ("gymnasium:no_such_module:Env-v0", "No module named 'no_such_module'.*gymnasium:MODULE:ENV_ID"),
        ("gymnasium:CartPole-v1", r"CartPole-v1: it cannot be read as text.*Box\("),
        ("gymnasium:FrozenLake-v1:observe=text", r"cannot be read as text with observe=text.*Discrete\(16\)"),
        ("gymnasium:Echo-v0:observe=ansi", r"cannot be read as text with observe=ansi.*renders as nothing"),
        ("gymnasium:Echo-v0:actions=a|b", r"its actions are texts \(Text"),
        ("gymnasium:FrozenLake-v1:actions=left|right", "names 2 actions, but there are 4"),
        ("gymnasium:FrozenLake-v1:slippery=false", "cannot be made with {'slippery': False}.*passed to gymnasium.make"),
        ("gymnasium:FrozenLake-v1:scale=0", "must lie in"),
        ("gymnasium:Echo-v0:mood=sick", "RuntimeError: no start"),
        ("gymnasium:", "needs ENV_ID"),
    ],
)
def test_what_cannot_be_played_is_refused_at_the_start(spec: str, said: str) -> None:
    with pytest.raises(TaskError, match=f"(?s){said}"):
        open_task(spec)


def test_actions_that_cannot_be_said_are_refused_with_their_space() -> None:
    class Boxed(Echo):
        action_space = gymnasium.spaces.MultiDiscrete([2, 3])

    gymnasium.register("Boxed-v0", entry_point=Boxed, disable_env_checker=True)
    with pytest.raises(TaskError, match=r"its actions are MultiDiscrete\(\[2 3\]\)"):
        open_task("gymnasium:Boxed-v0")
    del gymnasium.registry["Boxed-v0"]


@pytest.mark.parametrize(
    ("mood", "said"), [("nan", "the reward nan, not a finite number"), ("odd", "is of type list, not text")]
)
def test_what_an_environment_gets_wrong_ends_its_episode(mood: str, said: str) -> None:
    with pytest.raises(TaskError, match=said):
        played(opened(f"gymnasium:Echo-v0:mood={mood}"), "abc")


def test_an_environment_that_begins_otherwise_each_time_is_refused() -> None:
    task = opened("gymnasium:Echo-v0:mood=forgetful")
    with pytest.raises(TaskError, match="Derive everything random in it from that seed"):
        task.environment(task.problem(0), 0)
