"""Show a task: tokens with their spelling, rewards of answers, and the facts that cannot be found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from learner.rollouts.environment import EpisodeLimits
from node.commands.tasks.view import ShownTask, shown_task
from node.tasks.api.interface import Answer, Completion, Problem, TaskError, Turn
from node.tasks.checks.tokens import small_codec
from node.tasks.gate import Gate
from node.tasks.kinds.guess_and_lookup import LOOKUP
from node.tasks.registry import open_task

LIMITS = EpisodeLimits(turns=16, tokens=64, turn_tokens=8)


@dataclass(frozen=True, kw_only=True)
class Counting:
    """Turns are counted until the third; the reference is said each time."""

    name: str = "counting"
    levels: int = 1
    fingerprint: str = "counting"

    def problem(self, index: int) -> Problem:
        if index == 1:
            raise TaskError("there is no index 1.")
        return Problem(prompt="UPPER" if index == 2 else "<bos>go", answer="on")

    def held_out(self, index: int) -> Problem:
        return Problem(prompt="stay", answer=None)

    def answer_turn(self, problem: Problem, turns: Sequence[Turn], said: str) -> Answer | None:
        return f"{len(turns) + 1}" if len(turns) < 2 and said else None

    def reward(self, problem: Problem, completion: Completion) -> float:
        if not completion.text:
            raise ValueError("nothing was said")
        return float(len(completion.turns))


def view(count: int = 3, limits: EpisodeLimits = LIMITS) -> ShownTask:
    return shown_task(Gate(Counting()), "counting", codec=small_codec(), limits=limits, count=count, held_out=1)


def test_tokens_are_spelled_and_special_ones_known() -> None:
    first = view().problems[0]
    assert [(one.id, one.text, one.is_special) for one in first.tokens] == [
        (1, "<bos>", True),
        (10, "g", False),
        (18, "o", False),
    ]
    assert first.text == "<bos>go"
    assert [(one.id, one.text) for one in view().stop_ids] == [(2, "<eos>")]


def test_the_reference_is_said_in_every_turn() -> None:
    first = view().problems[0]
    assert first.reference is not None
    assert first.reference.reward == 2.0
    assert first.turns == (Turn("on", "1"), Turn("on", "2"))
    assert view(limits=EpisodeLimits(turns=2, tokens=64, turn_tokens=8)).problems[0].turns == (Turn("on", "1"),)


def test_what_cannot_be_judged_asked_or_written_is_told() -> None:
    first, absent, loud, held_out = view().problems
    assert first.empty.reward is None
    assert "failed at index 0: ValueError: nothing was said" in first.empty.why
    assert absent.trouble == "there is no index 1."
    assert "has no token for 'U' in 'UPPER'" in loud.trouble
    assert loud.text == "UPPER", "as the task has it"
    assert held_out.held_out
    assert held_out.reference is None


def test_a_task_whose_rewards_need_what_is_not_here() -> None:
    class Needy(Counting):
        def require(self) -> None:
            raise TaskError("needs a sandbox. Run: apt install it.")

    needy = shown_task(Gate(Needy()), "needy", codec=small_codec(), limits=LIMITS, count=1, held_out=0)
    assert needy.lacks == "needs a sandbox. Run: apt install it."
    assert needy.problems[0].empty.why == needy.lacks


def test_a_task_that_comes_with_the_program() -> None:
    lookup = shown_task(Gate(open_task("lookup")), "lookup", codec=small_codec(), limits=LIMITS, count=2, held_out=1)
    assert lookup.has_turns
    assert lookup.name == LOOKUP.name
    assert [problem.reference.reward for problem in lookup.problems if problem.reference] == [1.0, 1.0, 1.0]
