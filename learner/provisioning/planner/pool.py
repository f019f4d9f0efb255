"""The peers present at one review: what any set of them supplies, costs, and could do without.

Pure. What always holds: a share is of what the learner takes, without margin, at the strictest condition of
`learner.provisioning.model.machine_selection`; 1 is just enough, and more peers never give less.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from learner.provisioning.model.capacity import Clockwork
from learner.provisioning.model.machine_selection import (
    MARGIN,
    Candidate,
    Choice,
    Requirement,
    Shortage,
    cheapest,
    greedy,
)
from learner.provisioning.planner.constants import EXACT_ADDITIONS


class Pool:
    """`candidates` that may be on, and the `clock` that they serve."""

    def __init__(self, clock: Clockwork, candidates: Sequence[Candidate], unproven: Collection[str] = ()) -> None:
        self.candidates = tuple(candidates)
        self.unproven = unproven
        self.target = Requirement(clock, candidates, MARGIN)
        self._clock = clock
        self._index = {one.name: index for index, one in enumerate(candidates)}
        self._ordered: tuple[frozenset[str], list[str], np.ndarray] | None = None

    def __contains__(self, name: str) -> bool:
        return name in self._index

    def __getitem__(self, name: str) -> Candidate:
        return self.candidates[self._index[name]]

    @property
    def names(self) -> frozenset[str]:
        """Everybody."""
        return frozenset(self._index)

    def without(self, names: Collection[str]) -> Pool:
        """The others."""
        return Pool(self._clock, [one for one in self.candidates if one.name not in names], self.unproven)

    def share(self, names: Collection[str]) -> float:
        """What they supply of what the learner takes."""
        return MARGIN * self.target.share(self._vector(names)) if self.candidates else 0.0

    def price(self, names: Collection[str]) -> float:
        """Per hour."""
        return math.fsum(self[name].running_price for name in names)

    def moving_price(self, names: Collection[str], stands_s: float) -> float:
        """Per hour, of starting them for a plan that stands for `stands_s`."""
        return math.fsum(self[name].moving_price(stands_s) for name in names)

    def dearest_first(self, names: Collection[str]) -> list[str]:
        """By price per rollout; of those that are free, the slowest first."""
        return sorted(names, key=lambda name: (-self[name].rho, self[name].usable_rate, name))

    def additions(self, keep: Collection[str]) -> Choice | Shortage:
        """The cheapest set with those to `keep`; in a large pool what is missing is added greedily."""
        return (cheapest if len(self.candidates) <= EXACT_ADDITIONS else greedy)(self.target, keep=keep)

    def replaceable(self, on: Collection[str], name: str) -> list[str]:
        """Who of those `on` could go, the dearest first, if this one came, without the pool losing its margin."""
        order, weights = self._in_order(frozenset(on))
        spare = weights.sum(axis=1) + self.target.weights[:, self._index[name]] - self.target.least
        spared, start = [], 0
        while (fits := (weights[:, start:] <= spare[:, None]).all(axis=0)).any():
            found = start + int(fits.argmax())
            spared.append(order[found])
            spare, start = spare - weights[:, found], found + 1
        return spared

    def _in_order(self, on: frozenset[str]) -> tuple[list[str], np.ndarray]:
        """Those `on`, the dearest first, and what each supplies. The last answer is kept: of a thousand peers all who
        stand by are told what they could replace."""
        if self._ordered is None or self._ordered[0] != on:
            order = self.dearest_first(on)
            self._ordered = on, order, self.target.weights[:, [self._index[name] for name in order]]
        return self._ordered[1:]

    def _vector(self, names: Collection[str]) -> np.ndarray:
        on = np.zeros(len(self.candidates))
        on[[self._index[name] for name in names]] = 1.0
        return on
