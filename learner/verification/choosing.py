"""Whether a peer chooses among what its leases could bring, instead of delivering what they did: a test that may be
looked at after every group.

A peer knows its seeds, so it can find out what a group is worth before anybody sees it: it may give back what it does
not like, or make a group with each version that is admissible and send the best. The learner knows the seeds as well,
and draws such groups itself, beside others of the same prompt with seeds that nobody was told:

- what was *withheld* would be worth less than those, of who chooses;
- what was *delivered* would be worth more than the same seeds give with another version, by more than those are.

A machine that is taken away, a line that breaks, and a peer that is too slow lose long groups more often than short
ones, and what is longer may well be worth less; so completions are compared only with others of about the same length.
What always holds: if a lease is lost, or a version chosen, for reasons that know of its completions nothing but how
long they are, then among completions about as long it is chance which of them are the peer's, so that each bet below
has a mean of at most 1, and the probability that the evidence of a peer ever reaches 1/a is at most a
(`learner.verification.sequential`), however well the versions do; what is worth the same says nothing.

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

from learner.verification.sequential import History, wagered

STRENGTHS = (0.5, 1.0, 2.0)
"""How much better than chance the peer's completions are together, in their own standard error: that is bet on. Who
delivers the better half of its groups withholds at 0.8, who delivers three quarters at 1.3."""

LENGTHS = 1.2
"""Completions are about as long as each other between two powers of this. Wider, and lateness would look like a choice;
narrower, and little would be left to compare."""


class Choice(Enum):
    """What a peer may have chosen by what it is worth: not to deliver a group, or the version that made it."""

    WITHHELD = "withheld"
    VERSION = "version"


CONTROLS = {Choice.WITHHELD: 3, Choice.VERSION: 2}
"""Groups of our own seeds that are drawn beside the peer's. Of one, half of what can be known is lost in its own luck;
of three a quarter."""


@dataclass(frozen=True, kw_only=True)
class Worth:
    """A completion of so many tokens, and its reward, or by how much that is above another version's."""

    tokens: int
    reward: float


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What one group says: by how much, on average, the peer's completions are better `for_it` than all of about their
    length, and the logarithm of each bet's likelihood ratio."""

    for_it: float
    log_ratios: tuple[float, ...]


def seen(choice: Choice, theirs: Sequence[Worth], ours: Sequence[Worth]) -> Seen | None:
    """What the completions of a peer's seeds say beside those of ours; None where all of a length are worth the same.
    Better for the peer is worse, of what it withheld."""
    sign = -1.0 if choice is Choice.WITHHELD else 1.0
    strata = [one for one in _strata(theirs, ours, sign) if one.tells]
    if not strata:
        return None
    number = sum(len(one.theirs) for one in strata)
    spread = math.sqrt(sum(len(one.all) * pstdev(one.all) ** 2 for one in strata) / sum(len(one.all) for one in strata))
    gained = math.fsum(reward for one in strata for reward in one.theirs) / number
    scales = [strength / (spread * math.sqrt(number)) for strength in STRENGTHS]
    return Seen(for_it=gained, log_ratios=tuple(sum(one.log_ratio(scale) for one in strata) for scale in scales))


@dataclass(frozen=True, kw_only=True)
class _Stratum:
    """Completions of about the same length: what the peer's are worth to it above their mean, and what all are."""

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
        for i, reward in enumerate(self.all, 1):
            weight = math.exp(scale * reward)
            for j in range(min(i, size), 0, -1):
                means[j] = means[j] * (i - j) / i + weight * means[j - 1] * j / i
        return scale * math.fsum(self.theirs) - math.log(means[size])


def _strata(theirs: Sequence[Worth], ours: Sequence[Worth], sign: float) -> list[_Stratum]:
    found: defaultdict[int, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for place, group in enumerate((theirs, ours)):
        for one in group:
            found[_length(one)][place].append(sign * one.reward)
    strata = []
    for mine, yours in found.values():
        mean = math.fsum(mine + yours) / len(mine + yours)
        strata.append(_Stratum(theirs=[one - mean for one in mine], all=sorted(one - mean for one in mine + yours)))
    return strata


def _length(one: Worth) -> int:
    return math.floor(math.log(max(1, one.tokens), LENGTHS))


def heard_choice(history: History, found: Seen) -> History:
    """The history with one more group."""
    return wagered(history, found.log_ratios)
