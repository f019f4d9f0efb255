"""Which rewards of a rubric have names; rubrics of the package are stood for by classes of the same form."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from node.tasks.adapters.verifiers.rubric import MAX_NAMES, name_rewards, require_rubric
from node.tasks.api.interface import TaskError


class Rubric:
    def __init__(self, **weights: float) -> None:
        self.funcs: list[Callable[[], None]] = [named(name) for name in weights]
        self.weights = list(weights.values())

    def score_rollout(self) -> None: ...


class RubricGroup(Rubric):
    def __init__(self, *rubrics: Rubric) -> None:
        super().__init__()
        self.rubrics = rubrics

    def score_rollout(self) -> None: ...


class OwnRubric(Rubric):
    def score_rollout(self) -> None: ...


for one in (Rubric, RubricGroup):  # as the package's own are
    one.score_rollout.__module__ = "verifiers.rubrics"


def named(name: str) -> Callable[[], None]:
    def function() -> None: ...

    function.__name__ = name
    return function


def environment(rubric: Any, **others: Any) -> Any:
    return SimpleNamespace(rubric=rubric, **others)


def test_functions_are_rewards_also_those_of_a_group() -> None:
    group = RubricGroup(Rubric(right=1.0, form=0.2), Rubric(num_turns=0.0))
    assert name_rewards(group) == {"right": 1.0, "form": 0.2, "num_turns": 0.0}


TOTALS = {
    "one name twice": RubricGroup(Rubric(right=1.0), Rubric(right=0.5)),
    "a lambda": Rubric(**{"<lambda>": 1.0}),
    "a way of its own": OwnRubric(right=1.0),
    "one of a group has": RubricGroup(Rubric(form=1.0), OwnRubric(right=1.0)),
    "a name that is taken": Rubric(overlong=1.0),
    "too many": Rubric(**{f"r{n}": 1.0 for n in range(MAX_NAMES + 1)}),
}


@pytest.mark.parametrize("rubric", TOTALS.values(), ids=TOTALS)
def test_others_give_a_total(rubric: Rubric) -> None:
    assert name_rewards(rubric) == {}


def test_what_is_trained_on_comes_before_what_is_shown() -> None:
    shown = {f"shown{n}": 0.0 for n in range(MAX_NAMES)}
    weights = name_rewards(Rubric(**shown, right=1.0))
    assert len(weights) == MAX_NAMES
    assert weights["right"] == 1.0


def test_a_rubric_needs_a_reward_of_each_rollout() -> None:
    require_rubric(environment(Rubric(right=1.0)), "environment 'x'")
    require_rubric(environment(OwnRubric()), "environment 'x'")
    wrong = {
        "without a reward": environment(Rubric(num_turns=0.0)),
        "compare the rollouts": environment(SimpleNamespace(has_group_rewards=True)),
        "scores no rollouts": environment(Rubric(right=1.0), score_rollouts=False),
    }
    for told, one in wrong.items():
        with pytest.raises(TaskError, match=told):
            require_rubric(one, "environment 'x'")
