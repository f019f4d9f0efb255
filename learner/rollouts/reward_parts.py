"""Define named rewards, for tasks that give a completion several: correct, format, length and the like.

Invariants:

- The sum of a completion's parts, each times its weight, is its reward.
- An unknown part is NaN and is left out of the sum.
- Names are those of the task, so completions of one task have the same names.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

MAX_PARTS = 32
"""Maximum number of named rewards of one task: each is a series in metrics, and a row in the ledger per completion."""

MAX_NAME_CHARACTERS = 64
"""Maximum length of a name, which metrics and reports show."""


@dataclass(frozen=True, kw_only=True)
class RewardPart:
    """One of several rewards. `value` is NaN if it is unknown; `weight` is its factor in the sum, 0 if it is shown and
    not trained on."""

    name: str
    value: float
    weight: float = 1.0

    @property
    def is_known(self) -> bool:
        """Whether it could be computed."""
        return not math.isnan(self.value)


Parts = tuple[RewardPart, ...]
"""The named rewards of one completion; empty if its task gives one reward."""


def total(parts: Iterable[RewardPart]) -> float:
    """Return the weighted sum of the known parts; NaN if none is known."""
    known = [part for part in parts if part.is_known]
    return math.fsum(part.weight * part.value for part in known) if known else math.nan


def decisive(reward: float, parts: Parts, name: str) -> float | None:
    """Return the reward called `name`, or None if it is unknown. Return the whole `reward` for the name "", or if the
    task has no such name."""
    for part in parts:
        if part.name == name:
            return part.value if part.is_known else None
    return reward


def means(completions: Iterable[Parts]) -> Mapping[str, float]:
    """Return the mean of each named reward over the completions where it is known, by name, in order of appearance."""
    found: defaultdict[str, list[float]] = defaultdict(list)
    for parts in completions:
        for part in parts:
            if part.is_known:
                found[part.name].append(part.value)
    return {name: fmean(values) for name, values in found.items()}


def names_of(completions: Iterable[Parts]) -> Sequence[str]:
    """Return all names, in order of appearance."""
    return list(dict.fromkeys(part.name for parts in completions for part in parts))
