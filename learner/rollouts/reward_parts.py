"""The rewards of a completion that have names, where its task gives several: correct, format, length and the like.

What always holds: the sum of a completion's parts, each times its weight, is its reward; a part that nobody could say
counts as nothing in the sum, and is NaN; names are those of the task, so completions of one task have the same.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

MAX_PARTS = 32
"""Of one task: each is a series in metrics and a row in the ledger for every completion."""

MAX_NAME_CHARACTERS = 64
"""Of a name, which metrics and reports show."""


@dataclass(frozen=True, kw_only=True)
class RewardPart:
    """One reward of several. `value` is NaN where nobody could say it; `weight` is its share in the sum, 0 where it is
    shown and not trained on."""

    name: str
    value: float
    weight: float = 1.0

    @property
    def is_known(self) -> bool:
        """Whether somebody could say it."""
        return not math.isnan(self.value)


Parts = tuple[RewardPart, ...]
"""The named rewards of one completion, none where its task gives one reward."""


def total(parts: Iterable[RewardPart]) -> float:
    """Return the weighted sum of the parts that are known; NaN where none is."""
    known = [part for part in parts if part.is_known]
    return math.fsum(part.weight * part.value for part in known) if known else math.nan


def decisive(reward: float, parts: Parts, name: str) -> float | None:
    """Return the reward called `name`; that of the completion for the name "" or where its task has no such name; None
    where nobody could say it."""
    for part in parts:
        if part.name == name:
            return part.value if part.is_known else None
    return reward


def means(completions: Iterable[Parts]) -> Mapping[str, float]:
    """Return the mean of each named reward over those that were said, by name and in the order they come."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for parts in completions:
        for part in parts:
            if part.is_known:
                found[part.name].append(part.value)
    return {name: fmean(values) for name, values in found.items()}


def names_of(completions: Iterable[Parts]) -> Sequence[str]:
    """Return all names, in the order they come."""
    return list(dict.fromkeys(part.name for parts in completions for part in parts))
