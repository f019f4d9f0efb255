"""Whether what a peer does not deliver is worse than what it would have got by chance: a test that may be looked at
after every lease.

A peer knows its seeds, so it can find out what a group is worth before it sends it, and give back what it does not
like. The learner knows them too: it draws the group that was withheld itself, and another of the same prompt with seeds
that nobody was told. A machine that is taken away, a line that breaks, and a peer that is too slow lose long groups
more often than short ones, and what is longer may well be worth less; so completions are compared only with others of
about the same length. What always holds: if a lease is lost for reasons that know of its completions nothing but how
long they are, then of what is compared either side is as likely to be the better one, so that the probability that its
evidence ever reaches 1/a is at most a (`learner.verification.sequential`); what is worth the same says nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from learner.verification.sequential import History, wagered

CHANCE = 0.5
"""How often an honest peer's withheld group is the worse one of two that differ."""

RATES = (0.65, 0.8, 0.95)
"""How often it may be of who chooses: that is bet on."""


LENGTHS = 1.1
"""Completions are about as long as each other between two powers of this. Wider, and lateness would look like a choice;
narrower, and little would be left to compare."""


@dataclass(frozen=True, kw_only=True)
class Worth:
    """A completion of so many tokens, and its reward."""

    tokens: int
    reward: float


def alike(withheld: Sequence[Worth], drawn: Sequence[Worth]) -> tuple[list[float], list[float]]:
    """Rewards of the completions of both groups that have a counterpart about as long in the other, each with one, in
    the order of their seeds, which knows nothing of what they are worth."""
    ours: defaultdict[int, list[float]] = defaultdict(list)
    for one in drawn:
        ours[_length(one)].append(one.reward)
    pairs = [(one.reward, of.pop(0)) for one in withheld if (of := ours[_length(one)])]
    return [reward for reward, _ in pairs], [reward for _, reward in pairs]


def _length(one: Worth) -> int:
    return math.floor(math.log(max(1, one.tokens), LENGTHS))


def is_worse(withheld: Sequence[float], drawn: Sequence[float]) -> bool | None:
    """Whether the rewards that were withheld are worse in sum; None where they are not different. Both are of
    `alike`."""
    one, other = math.fsum(withheld), math.fsum(drawn)
    return None if one == other else one < other


def heard_withheld(history: History, worse: bool) -> History:
    """The history with one more group that was withheld, and was worse than the one drawn beside it, or better."""
    return wagered(history, [_log_ratio(worse, rate) for rate in RATES])


def _log_ratio(worse: bool, rate: float) -> float:
    return math.log(rate / CHANCE) if worse else math.log((1 - rate) / (1 - CHANCE))
