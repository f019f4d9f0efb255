"""Whether a peer chooses among what its leases could bring, instead of delivering what they did: a test that may be
looked at after every group.

A peer knows its seeds, so it can find out what a group is worth before anybody sees it: it may give back what it does
not like, or make a group with each version that is admissible and send the best. The learner knows the seeds as well,
and draws such groups itself, beside others of the same prompt with seeds that nobody was told:

- what was *withheld* would be worth less than those, of who chooses, and what was *delivered* more;
- the seeds of what was delivered would gain more by the version that made it, over another that could have, than ours
  do. Both versions are drawn by the learner, of theirs as of ours, and how long a completion is goes by that, too:
  another engine rounds otherwise, which may change more of a completion than a training step does, and what the peer
  says was cut off may have ended well here.

A machine that is taken away, a line that breaks, and a peer that is too slow lose long groups more often than short
ones, and what is longer may well be worth less; so completions are compared only with others of about the same length.
What always holds: if a lease is lost, or a version chosen, for reasons that know of its completions nothing but how
long they are, then among completions about as long it is chance which of them are the peer's, so that each bet below
has a mean of at most 1, and the probability that the evidence of a peer ever reaches 1/a is at most a
(`learner.trust.ban_evidence`), however well the versions do; what is worth the same says nothing.

A bet pays exp(s * sum of the peer's worth), divided by the mean of that over all ways to deal the same completions
within each length: the permutation test's own normal constant, so that it is exact whatever rewards are. (Of e-values:
Vovk and Wang, "E-values: calibration, combination and applications", 2021.)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from statistics import pstdev
from typing import NamedTuple

STRENGTHS = (0.5, 1.0, 2.0)
"""How much better than chance the peer's completions are together, in their own standard error: that is bet on. Who
delivers the better half of its groups withholds at 0.8, who delivers three quarters at 1.3."""

LENGTHS = 1.2
"""Completions are about as long as each other between two powers of this. Wider, and lateness would look like a choice;
narrower, and little would be left to compare."""


LEAST_SPREAD = 1e-300
"""Rewards that differ by less are the same: what they are divided by must be a number that floats have."""


class DeliveryOutcome(Enum):
    """What a peer did with a group."""

    WITHHELD = "withheld"
    DELIVERED = "delivered"


CONTROLS = {DeliveryOutcome.WITHHELD: 3, DeliveryOutcome.DELIVERED: 2}
"""Groups of our own seeds that are drawn beside the peer's. Of one, half of what can be known is lost in its own luck;
of three a quarter."""


@dataclass(frozen=True, kw_only=True)
class CompletionValue:
    """A completion of so many tokens, and its reward; and where it is known, which is of all completions of a group or
    of none, what its seed `gains`."""

    tokens: int
    reward: float
    gains: VersionGain | None = None


@dataclass(frozen=True, kw_only=True)
class VersionGain:
    """By how much more a seed is `worth` with the version that made its completion than with another, and of how many
    `tokens` it is with the former, all on the learner's engine."""

    tokens: int
    worth: float


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one group says: by how much, on average, the peer's completions are better for it than all of about their
    length (`worth`), and what they gain by their version (`gain`), 0 where that says nothing; and the logarithm of each
    bet's likelihood ratio."""

    worth: float
    gain: float
    log_ratios: tuple[float, ...]


def seen(
    choice: DeliveryOutcome, theirs: Sequence[CompletionValue], ours: Sequence[CompletionValue], *, withheld: float
) -> Seen | None:
    """What the completions of a peer's seeds say beside those of ours; None where all of a length are worth the same.
    Better for the peer is worse, of what it withheld.

    `withheld`: of its groups it does not deliver that share, 0 <= withheld < 1, of late. Who chooses puts aside the
    worst, so that what is rarer is further from chance, by just that: the others are bet on with so much less.
    """
    odds = withheld / (1 - withheld)
    sign, part = (-1.0, 1 / max(odds, 1.0)) if choice is DeliveryOutcome.WITHHELD else (1.0, min(odds, 1.0))
    values = [[_Item(one.tokens, sign * one.reward) for one in group] for group in (theirs, ours)]
    level = _bets(*values, part=part)
    gain = _bets(
        *([_Item(one.gains.tokens, one.gains.worth) for one in group if one.gains] for group in (theirs, ours))
    )
    if level is None and gain is None:
        return None
    worth, of_worth = level or NOTHING
    gained, of_gain = gain or NOTHING
    return Seen(worth=worth, gain=gained, log_ratios=of_worth + of_gain)


class _Item(NamedTuple):
    tokens: int
    value: float


NOTHING = (0.0, (0.0,) * len(STRENGTHS))


def _bets(
    theirs: Sequence[_Item], ours: Sequence[_Item], *, part: float = 1.0
) -> tuple[float, tuple[float, ...]] | None:
    """By how much theirs are better on average, and the logarithm of what that `part` of each of STRENGTHS is paid."""
    strata = [one for one in _strata(theirs, ours) if one.tells]
    if not strata:
        return None
    number = sum(len(one.theirs) for one in strata)
    # Before they are squared, or rewards of 1e-200 would be worth the same.
    deviations = [(len(one.all), pstdev(one.all)) for one in strata]
    largest = max(deviation for _, deviation in deviations)
    if largest < LEAST_SPREAD:
        return None
    squares = sum(size * (deviation / largest) ** 2 for size, deviation in deviations)
    spread = largest * math.sqrt(squares / sum(size for size, _ in deviations))
    better = math.fsum(value for one in strata for value in one.theirs) / number
    scales = [part * strength / (spread * math.sqrt(number)) for strength in STRENGTHS]
    return better, tuple(sum(one.log_ratio(scale) for one in strata) for scale in scales)


@dataclass(frozen=True, kw_only=True)
class _Stratum:
    """Completions of about the same length: by how much the peer's are above the mean of all of them, and all are."""

    theirs: list[float] = field(default_factory=list)
    all: list[float] = field(default_factory=list)

    @property
    def tells(self) -> bool:
        """Whether it matters which are the peer's."""
        return 0 < len(self.theirs) < len(self.all) and len(set(self.all)) > 1

    def log_ratio(self, scale: float) -> float:
        """Of exp(scale * sum of the peer's) over its mean over all choices of as many. The mean over choices of j of
        the first i is that over those of j of i - 1, and over those of j - 1 with the i-th, as often as each occurs."""
        size = len(self.theirs)
        means = [1.0] + [0.0] * size
        for i, value in enumerate(self.all, 1):
            weight = math.exp(scale * value)
            for j in range(min(i, size), 0, -1):
                means[j] = means[j] * (i - j) / i + weight * means[j - 1] * j / i
        return scale * math.fsum(self.theirs) - math.log(means[size])


def _strata(theirs: Sequence[_Item], ours: Sequence[_Item]) -> list[_Stratum]:
    found: defaultdict[int, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for place, group in enumerate((theirs, ours)):
        for one in group:
            found[math.floor(math.log(max(1, one.tokens), LENGTHS))][place].append(one.value)
    strata = []
    for mine, yours in found.values():
        mean = math.fsum(mine + yours) / len(mine + yours)
        strata.append(_Stratum(theirs=[one - mean for one in mine], all=sorted(one - mean for one in mine + yours)))
    return strata
