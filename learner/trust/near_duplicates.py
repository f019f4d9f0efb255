"""Completions that repeat what another lease brought: a reason to look, never a verdict.

What always holds: equal answers that anybody would give are no copies; memory is bounded by REMEMBERED completions, the
oldest going first. Who was copied looks like who copies, so nobody is blamed here: both are audited, and the seeds tell
them apart.

Compared are shingles of SHINGLE tokens, of which a completion keeps the least hashes (bottom-k sketch, Broder 1997):
the share that two sketches have in common estimates that of their shingles. Of interest is only what repeats a
completion that was unlikely, by the word of who brought it first: two independent draws of a text of log probability p
coincide with probability exp(p). What who repeats it says of that does not count.
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
"""Of two sketches that must be the same: with one token in ten changed, half of the shingles still are."""

UNLIKELY = -24.0
"""Log probability above which equal completions may be chance, in a swarm of millions of rollouts."""

COMMON = 64
"""Completions that share a shingle from which on it is everybody's, and says nothing."""

REMEMBERED = 8192
"""Completions whose sketches are kept: some 50 MB."""


def sketch(tokens: Sequence[int], salt: int = 0) -> frozenset[int]:
    """The least hashes of the shingles of a completion; of one shorter than a shingle, the hash of all of it.

    `salt`, 0 <= salt < 2**64, is the learner's own: who knew it could write texts whose sketches he chooses.
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
    """SplitMix64's next: every bit of the result depends on every bit of the value. Wraps around."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def likeness(one: frozenset[int], other: frozenset[int]) -> float:
    """The estimated share of shingles in common, in [0, 1]."""
    least = sorted(one | other)[:SKETCH]
    return sum(value in one and value in other for value in least) / len(least) if least else 0.0


@dataclass(kw_only=True)
class NearCopies:
    """What was brought of late."""

    remembered: int = REMEMBERED
    _sketches: OrderedDict[tuple[LeaseId, int], frozenset[int]] = field(default_factory=OrderedDict)
    _holders: dict[int, set[tuple[LeaseId, int]]] = field(default_factory=dict)

    def seen(self, lease: LeaseId, index: int, mine: frozenset[int], log_probability: float) -> LeaseId | None:
        """Remember completion `index` of `lease`, which has the sketch `mine`, if it is unlikely; return another lease
        that brought nearly the same, if one did.

        `log_probability`: of the whole completion, as its author claims.
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
