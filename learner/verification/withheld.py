"""Whether what a peer does not deliver is worse than what it would have got by chance: a test that may be looked at
after every lease.

A peer knows its seeds, so it can find out what a group is worth before it sends it, and give back what it does not
like. The learner knows them too: it draws the group that was withheld itself, and another of the same prompt with seeds
that nobody was told. What always holds: of a peer whose machine is taken away, whose line breaks, or which is too slow,
whatever the prompt, either of the two is as likely to be the better one, so that the probability that its evidence ever
reaches 1/a is at most a (`learner.verification.sequential`); two groups that are worth the same say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from learner.verification.sequential import History, wagered

CHANCE = 0.5
"""How often an honest peer's withheld group is the worse one of two that differ."""

RATES = (0.65, 0.8, 0.95)
"""How often it may be of who chooses: that is bet on."""


def is_worse(withheld: Sequence[float], drawn: Sequence[float]) -> bool | None:
    """Whether the rewards of the group that was withheld are worse on average; None where they are not different."""
    one, other = fmean(withheld), fmean(drawn)
    return None if one == other else one < other


def heard_withheld(history: History, worse: bool) -> History:
    """The history with one more group that was withheld, and was worse than the one drawn beside it, or better."""
    return wagered(history, [_log_ratio(worse, rate) for rate in RATES])


def _log_ratio(worse: bool, rate: float) -> float:
    return math.log(rate / CHANCE) if worse else math.log((1 - rate) / (1 - CHANCE))
