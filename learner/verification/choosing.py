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
long they are, then of what is compared either side is as likely to be the better one, so that the probability that the
evidence of a peer ever reaches 1/a is at most a (`learner.verification.sequential`), however well the versions do; what
is worth the same says nothing.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from learner.verification.sequential import History, wagered

CHANCE = 0.5
"""How often what an honest peer withholds is the worse of two that differ, and what it delivers the better."""

RATES = (0.65, 0.8, 0.95)
"""How often it may be of who chooses: that is bet on."""

LENGTHS = 1.1
"""Completions are about as long as each other between two powers of this. Wider, and lateness would look like a choice;
narrower, and little would be left to compare."""


class Choice(Enum):
    """What a peer may have chosen by what it is worth: not to deliver a group, or the version that made it."""

    WITHHELD = "withheld"
    VERSION = "version"


@dataclass(frozen=True, kw_only=True)
class Worth:
    """A completion of so many tokens, and its reward, or by how much that is above another version's."""

    tokens: int
    reward: float


def compared(theirs: Sequence[Worth], ours: Sequence[Worth]) -> tuple[float, float] | None:
    """What the completions of a peer's seeds are worth on average, and those of ours, of both as many as have a
    counterpart about as long; None where that is the same."""
    one, other = alike(theirs, ours)
    if (mine := math.fsum(one)) == (yours := math.fsum(other)):
        return None
    return mine / len(one), yours / len(other)


def is_favourable(choice: Choice, theirs: float, ours: float) -> bool:
    """Whether what was `compared` is as somebody would have it who chooses."""
    return theirs < ours if choice is Choice.WITHHELD else theirs > ours


def alike(theirs: Sequence[Worth], ours: Sequence[Worth]) -> tuple[list[float], list[float]]:
    """Rewards of the completions of both groups that have a counterpart about as long in the other, each with one, in
    the order of their seeds, which knows nothing of what they are worth."""
    waiting: defaultdict[int, list[float]] = defaultdict(list)
    for one in ours:
        waiting[_length(one)].append(one.reward)
    pairs = [(one.reward, of.pop(0)) for one in theirs if (of := waiting[_length(one)])]
    return [reward for reward, _ in pairs], [reward for _, reward in pairs]


def _length(one: Worth) -> int:
    return math.floor(math.log(max(1, one.tokens), LENGTHS))


def heard_choice(history: History, favourable: bool) -> History:
    """The history with one more group of which was found what the peer would have it be, or the opposite."""
    return wagered(history, [_log_ratio(favourable, rate) for rate in RATES])


def _log_ratio(favourable: bool, rate: float) -> float:
    return math.log(rate / CHANCE) if favourable else math.log((1 - rate) / (1 - CHANCE))
