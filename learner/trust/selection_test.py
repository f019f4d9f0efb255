"""Test whether a peer delivers selectively; the result may be looked at after every group.

A peer knows its seeds, so it can find out the reward of a group before any other peer sees it. It may return the groups
that it does not like, or make a group with each admissible version and send the best. The learner knows the seeds as
well, and regenerates such groups itself, beside others of the same prompt with seeds that were sent to no peer:

- If the peer selects, groups that were *withheld* have lower rewards than those others, and *delivered* ones higher.
- If the peer chose the version, the seeds of what was delivered gain more than ours by the version that made it, over
  another that could have. The learner regenerates with both versions, for their seeds and ours, and takes the lengths
  from that, too. Another engine rounds in another way, which may change a completion more than a training step does;
  and a completion that was cut off, by the peer's claim, may have ended well here.

A machine that is taken away, a connection that breaks, and a peer that is too slow lose long groups more often than
short ones, and longer completions may well have lower rewards. So completions are compared only with others of about
the same length.

A bet pays exp(s * sum of the peer's values), divided by the mean of that over all ways to deal the same completions
within each length. This is the normalising constant of the permutation test itself, so the bet is exact for any
rewards. (On e-values: Vovk and Wang, "E-values: calibration, combination and applications", 2021.)

Invariants:

- Suppose a lease is lost, or a version chosen, for reasons that depend on its completions only by their length. Then
  among completions of about that length, it is chance which of them are the peer's. So each bet below has a mean of at
  most 1, and the probability that the evidence about a peer ever reaches 1/a is at most a
  (`learner.trust.ban_evidence`), however good the versions are.
- Completions with equal values say nothing.
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
"""How much better than chance the peer's completions are together, in their own standard error: the values that are bet
on. A peer that delivers the better half of its groups withholds at 0.8, one that delivers three quarters at 1.3."""

LENGTHS = 1.2
"""Completions are of about the same length between two powers of this. If it were larger, lateness would look like a
choice; if it were smaller, little would be left to compare."""


LEAST_SPREAD = 1e-300
"""Rewards that differ by less are the same: they are divided by this spread, which must be a number that floats
have."""


class DeliveryOutcome(Enum):
    """What a peer did with a group."""

    WITHHELD = "withheld"
    DELIVERED = "delivered"


CONTROLS = {DeliveryOutcome.WITHHELD: 3, DeliveryOutcome.DELIVERED: 2}
"""Groups with the learner's own seeds that are generated beside the peer's. With one, half of the possible information
is lost in its own chance; with three, a quarter."""


@dataclass(frozen=True, kw_only=True)
class CompletionValue:
    """The tokens and the reward of a completion, and what its seed `gains`, if that is known; it is known for all
    completions of a group or for none."""

    tokens: int
    reward: float
    gains: VersionGain | None = None


@dataclass(frozen=True, kw_only=True)
class VersionGain:
    """`value`: how much more a seed is worth with the version that made its completion than with another. `tokens`: the
    length of the completion with the former, all on the learner's engine."""

    tokens: int
    value: float


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The result for one group. `value` is by how much, on average, the peer's completions are better for it than all
    of about their length; `gain` is what they gain by their version. Each is 0 if it says nothing. `log_ratios` has the
    logarithm of each bet's likelihood ratio."""

    value: float
    gain: float
    log_ratios: tuple[float, ...]


def seen(
    outcome: DeliveryOutcome, theirs: Sequence[CompletionValue], ours: Sequence[CompletionValue], *, withheld: float
) -> Seen | None:
    """Return what the completions of a peer's seeds say beside those of ours; None if all of a length have the same
    value. For withheld completions, a lower reward counts as better for the peer.

    `withheld`: the share of its recent groups that the peer does not deliver, 0 <= withheld < 1. A peer that selects
    puts aside the worst, so the rarer kind, withheld or delivered, is further from chance, by just these odds. The
    other kind is bet on with that much less.
    """
    odds = withheld / (1 - withheld)
    sign, part = (-1.0, 1 / max(odds, 1.0)) if outcome is DeliveryOutcome.WITHHELD else (1.0, min(odds, 1.0))
    values = [[_Item(one.tokens, sign * one.reward) for one in group] for group in (theirs, ours)]
    level = _bets(*values, part=part)
    gain = _bets(
        *([_Item(one.gains.tokens, one.gains.value) for one in group if one.gains] for group in (theirs, ours))
    )
    if level is None and gain is None:
        return None
    value, of_value = level or NOTHING
    gained, of_gain = gain or NOTHING
    return Seen(value=value, gain=gained, log_ratios=of_value + of_gain)


class _Item(NamedTuple):
    tokens: int
    value: float


NOTHING = (0.0, (0.0,) * len(STRENGTHS))


def _bets(
    theirs: Sequence[_Item], ours: Sequence[_Item], *, part: float = 1.0
) -> tuple[float, tuple[float, ...]] | None:
    """Return by how much theirs are better on average, and the logarithm of what bets with that `part` of each of
    STRENGTHS pay."""
    strata = [one for one in _strata(theirs, ours) if one.tells]
    if not strata:
        return None
    number = sum(len(one.theirs) for one in strata)
    # Scale before squaring, or rewards of 1e-200 would all count as equal.
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
    """Completions of about the same length: by how much those of the peer, and all of them, are above the mean of
    all."""

    theirs: list[float] = field(default_factory=list)
    all: list[float] = field(default_factory=list)

    @property
    def tells(self) -> bool:
        """Whether it matters which are the peer's."""
        return 0 < len(self.theirs) < len(self.all) and len(set(self.all)) > 1

    def log_ratio(self, scale: float) -> float:
        """Return the logarithm of exp(scale * sum of the peer's values) over its mean over all choices of as many
        values.

        The mean over choices of j of the first i values combines two means: that over choices of j of i - 1 values, and
        that over choices of j - 1 with the i-th. Each is weighted by how often it occurs.
        """
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
