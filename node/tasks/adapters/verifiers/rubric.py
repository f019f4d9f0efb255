"""Find the named rewards of a `verifiers` rubric.

A rubric is a list of functions with weights, or a group of rubrics whose rewards are added. A rubric of a class of its
own may compute its reward in another way; then only the total is known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from node.tasks.api.interface import TaskError

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
"""Names that a series of metrics may have. The name of a lambda does not match."""

TAKEN = "overlong"
"""The name of a reward that the learner adds itself."""

MAX_NAMES = 32
"""Maximum named rewards of one task: each is a series in metrics, and a row in the ledger for every completion."""

STOCK = "verifiers."
"""The modules of the package itself, whose rubrics add up their functions."""


def require_rubric(environment: Any, who: str) -> None:
    """Raise TaskError if the environment's rewards cannot be computed for one rollout at a time."""
    if getattr(environment, "score_rollouts", True) is False:
        raise TaskError(f"{who} scores no rollouts (score_rollouts=False), so there is no reward to learn from.")
    if getattr(environment.rubric, "has_group_rewards", False):
        raise TaskError(
            f"{who} has rewards that compare the rollouts of a group (functions of `completions`, `states` and the "
            "like). Here each episode is judged by itself, because others of its group may still run. Write the "
            "reward as a function of one `completion`."
        )
    own = [_is_own(rubric) for rubric in _rubrics(environment.rubric)]
    if not any(own) and not any(weight for _, weight in _functions(environment.rubric)):
        raise TaskError(f"{who} has a rubric without a reward: no function of it has a weight other than 0.")


def name_rewards(rubric: Any) -> Mapping[str, float]:
    """Return the weights of a rubric's functions by name. Returns an empty mapping if the names do not tell the
    functions apart, or if the rubric computes its reward in its own way. If there are too many functions, some of
    weight 0 are left out."""
    functions = list(_functions(rubric))
    weights = dict(functions)
    is_plain = not any(_is_own(one) for one in (rubric, *_rubrics(rubric)))
    is_told = len(weights) == len(functions) and all(map(NAME.fullmatch, weights)) and TAKEN not in weights
    trained = {name: weight for name, weight in weights.items() if weight}
    if not is_plain or not is_told or len(trained) > MAX_NAMES:
        return {}
    shown = [name for name in weights if name not in trained]
    return trained | dict.fromkeys(shown[: MAX_NAMES - len(trained)], 0.0)


def _rubrics(rubric: Any) -> Iterator[Any]:
    """Yield the innermost rubrics inside a rubric."""
    parts = getattr(rubric, "rubrics", None)
    if parts is None:
        yield rubric
        return
    for part in parts:
        yield from _rubrics(part)


def _functions(rubric: Any) -> Iterator[tuple[str, float]]:
    for one in _rubrics(rubric):
        for function, weight in zip(one.funcs, one.weights, strict=True):
            yield getattr(function, "__name__", ""), float(weight)


def _is_own(rubric: Any) -> bool:
    """Return whether the rubric computes its reward in its own way."""
    method = type(rubric).score_rollout
    name = str(getattr(method, "__qualname__", ""))
    return not (str(method.__module__).startswith(STOCK) and name.split(".")[0] in ("Rubric", "RubricGroup"))
