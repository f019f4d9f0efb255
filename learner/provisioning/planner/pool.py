"""Compute what any set of the peers at one review supplies, costs, and could do without.

Pure.

Invariants:

- A share is of what the learner takes, without margin, at the strictest condition of
  `learner.provisioning.model.machine_selection`; 1 is just enough.
- More peers never supply less.
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
    """The `candidates` that may be active, and the `clock` that they serve."""

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
        """The names of all."""
        return frozenset(self._index)

    def without(self, names: Collection[str]) -> Pool:
        """Return the pool of the others."""
        return Pool(self._clock, [one for one in self.candidates if one.name not in names], self.unproven)

    def share(self, names: Collection[str]) -> float:
        """Return how much of what the learner takes these peers supply."""
        return MARGIN * self.target.share(self._vector(names)) if self.candidates else 0.0

    def price(self, names: Collection[str]) -> float:
        """Return their price per hour."""
        return math.fsum(self[name].running_price for name in names)

    def moving_price(self, names: Collection[str], stands_s: float) -> float:
        """Return the price per hour of starting them for a plan that stands for `stands_s`."""
        return math.fsum(self[name].moving_price(stands_s) for name in names)

    def dearest_first(self, names: Collection[str]) -> list[str]:
        """Return the names by price per rollout, and of those that are free, the slowest first."""
        return sorted(names, key=lambda name: (-self[name].rho, self[name].usable_rate, name))

    def additions(self, keep: Collection[str]) -> Choice | Shortage:
        """Return the cheapest set that contains the peers to `keep`; in a large pool, what is missing is added
        greedily."""
        return (cheapest if len(self.candidates) <= EXACT_ADDITIONS else greedy)(self.target, keep=keep)

    def replaceable(self, active: Collection[str], name: str) -> list[str]:
        """Return which of the active peers could go if this one came, the dearest first, without the pool losing its
        margin."""
        order, weights = self._in_order(frozenset(active))
        spare = weights.sum(axis=1) + self.target.weights[:, self._index[name]] - self.target.least
        spared, start = [], 0
        while (fits := (weights[:, start:] <= spare[:, None]).all(axis=0)).any():
            found = start + int(fits.argmax())
            spared.append(order[found])
            spare, start = spare - weights[:, found], found + 1
        return spared

    def _in_order(self, active: frozenset[str]) -> tuple[list[str], np.ndarray]:
        """Return the active peers, the dearest first, and what each supplies. The last answer is kept: with a thousand
        peers, each one on standby is sent what it could replace."""
        if self._ordered is None or self._ordered[0] != active:
            order = self.dearest_first(active)
            self._ordered = active, order, self.target.weights[:, [self._index[name] for name in order]]
        return self._ordered[1:]

    def _vector(self, names: Collection[str]) -> np.ndarray:
        active = np.zeros(len(self.candidates))
        active[[self._index[name] for name in names]] = 1.0
        return active
