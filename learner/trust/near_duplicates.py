"""Find completions that repeat what another lease brought: a reason for an audit, never a verdict.

A completion is compared by its shingles of SHINGLE tokens. It keeps the least hashes of these (bottom-k sketch, Broder
1997); the share that two sketches have in common estimates that of their shingles. Only repetitions of an unlikely
completion matter: two independent samples of a text of log probability p coincide with probability exp(p). The log
probability is that claimed by the peer that brought it first; the claim of a peer that repeats it does not count.

Invariants:

- Equal completions that any peer would give are no copies.
- Memory is bounded by REMEMBERED completions; the oldest go first.
- No peer is blamed here, since the copied peer looks like the one that copies. Both are audited, and the seeds tell
  them apart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocol.core.ids import LeaseId

SHINGLE = 4
SKETCH = 64
"""Hashes kept of a completion."""

ALIKE = 0.35
"""Share of two sketches that must be the same: with one token in ten changed, half of the shingles still are."""

UNLIKELY = -24.0
"""Log probability above which equal completions may be chance, in a swarm of millions of rollouts."""

COMMON = 64
"""A shingle that this many completions share is common, and says nothing."""

REMEMBERED = 8192
"""Completions whose sketches are kept: about 50 MB."""


def sketch(tokens: Sequence[int], salt: int = 0) -> frozenset[int]:
    """Return the least hashes of a completion's shingles; for one shorter than a shingle, the hash of all of it.

    `salt`, 0 <= salt < 2**64, is the learner's secret: a peer that knew it could write texts with sketches of its
    choice.
    """
    width = min(SHINGLE, len(tokens))
    if not width:
        return frozenset()
    shingles = np.lib.stride_tricks.sliding_window_view(np.asarray(tokens, np.uint64), width)
    hashes = np.full(len(shingles), salt, np.uint64)
    for column in range(width):
        hashes = _mixed(hashes ^ shingles[:, column])
    hashes = np.unique(hashes)
    return frozenset(hashes[:SKETCH].tolist())


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's next value: every bit of the result depends on every bit of the value. Wraps around."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def likeness(one: frozenset[int], other: frozenset[int]) -> float:
    """Return the estimated share of shingles in common, in [0, 1]."""
    least = sorted(one | other)[:SKETCH]
    return sum(value in one and value in other for value in least) / len(least) if least else 0.0


@dataclass(kw_only=True)
class NearCopies:
    """The completions that were brought lately."""

    remembered: int = REMEMBERED
    _sketches: OrderedDict[tuple[LeaseId, int], frozenset[int]] = field(default_factory=OrderedDict)
    _holders: dict[int, set[tuple[LeaseId, int]]] = field(default_factory=dict)

    def seen(self, lease: LeaseId, index: int, mine: frozenset[int], log_probability: float) -> LeaseId | None:
        """Remember completion `index` of `lease`, which has the sketch `mine`, if it is unlikely. Return another lease
        that brought nearly the same, if one did.

        `log_probability`: of the whole completion, as claimed by its peer.
        """
        rare = [holders for value in mine if (holders := self._holders.get(value)) and len(holders) < COMMON]
        candidates = {holder for holders in rare for holder in holders if holder[0] != lease}
        alike = [holder for holder in candidates if likeness(mine, self._sketches[holder]) >= ALIKE]
        if log_probability <= UNLIKELY:
            self._remember((lease, index), mine)
        return min(alike)[0] if alike else None

    def _remember(self, holder: tuple[LeaseId, int], mine: frozenset[int]) -> None:
        self._sketches[holder] = mine
        for value in mine:
            self._holders.setdefault(value, set()).add(holder)
        while len(self._sketches) > self.remembered:
            oldest, values = self._sketches.popitem(last=False)
            for value in values:
                self._holders[value].discard(oldest)
                if not self._holders[value]:
                    del self._holders[value]
