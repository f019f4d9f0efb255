"""Reputation: what was observed of a peer day by day in, a score with its parts out.

A plain function of counts, the same for whoever has the counts: a learner, its report, and the reader of a signed note
(`protocol.accounting.reputation_note`). Observations lose half of their weight every HALF_LIFE_DAYS. Four shares in [0,
1] make the score, 1 where nothing speaks against the peer: availability (it does not vanish), timeliness (what it
leases comes back in time), honesty (no rule blames its groups), soundness (its audits pass). Service, what it passes on
of versions, makes up for a part of what is missing, and lacks nobody.

What always holds: every figure is a number in [0, 1]; a better observation never lowers one; size does not enter, but
for a few good observations that everybody starts with, so that of two peers of the same habits the smaller one never
has the worse score; a soft strike is more than chance brings about, and passes with time, with good work, or by the
operator's pardon. Nothing here bans.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.core.codec import Count

SCALE = 1
"""Number of the rules on this page. Whoever changes a score, a strike or a band makes it the next one."""

DAY_MS = 86_400_000
"""Observations are dated by days of UTC: what a day brought stays what it was, and can be counted again."""

HALF_LIFE_DAYS = 7
"""A habit is of the week: who lends a machine at weekends is remembered from one to the next, and what was mended a
month ago counts a sixteenth."""

WINDOW_DAYS = 8 * HALF_LIFE_DAYS
"""What is older would count less than 1/256, and is left out."""

PRIOR = 4.0
"""Good observations everybody starts with: the first bad one then costs a newcomer a fifth."""

PRIOR_MS = 3_600_000.0
"""The same of presence."""

FORGIVEN = 1e-3
"""Share of audits that may fail without a strike: ten times what honest peers have at most."""

QUARANTINE_STRIKES = 0.5
"""A failed audit counts 1, so it is a strike for a week."""

MOST_ABANDONED = 0.25
"""Share of leases that machines and lines of good will may lose in the long run."""

MOST_BLAMED = 0.05
"""Share of groups that a working node may have refused with blame in the long run: none does, but for defects."""

CHANCE = 1e-3
"""Probability at most that a peer within these shares is taken for one that is not, at any one time."""

SERVICE_GAIN = 0.1
"""The part of what is missing to 1 that service makes up for: it is a receiver's word, and may not hide much."""

NEW_BELOW = 8.0
"""Leases of late, below which too little is known to call a peer anything but new."""

STEADY = 0.9
FAIR = 0.7
"""Least scores that are called so."""

Ms = Annotated[int, Meta(ge=0, le=DAY_MS)]


class ObservedDay(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What was seen of a peer on one day, counted from 1970 in UTC.

    `present_ms` it was here, `missed_ms` it was missing without a word; `leases_failed` came late, ran out, or were
    given up more often than is excused; a group is `blamed` when a rule says so that a working node never meets; bytes
    are those of chunks that it gave to others and had of others, as receivers signed.
    """

    day: Count
    present_ms: Ms = 0
    missed_ms: Ms = 0
    leases_in_time: Count = 0
    leases_failed: Count = 0
    groups_clean: Count = 0
    groups_blamed: Count = 0
    audits_passed: Count = 0
    audits_failed: Count = 0
    bytes_given: Count = 0
    bytes_had: Count = 0


COUNTS = ObservedDay.__struct_fields__[1:]

WEIGHTS = tuple(round(2.0 ** (-age / HALF_LIFE_DAYS), 12) for age in range(WINDOW_DAYS + 1))
"""Of a day by its age; rounded, so that every machine has the same ones."""


@dataclass(frozen=True, kw_only=True)
class Lately:
    """The same of all days, each weighted by its age."""

    present_ms: float = 0.0
    missed_ms: float = 0.0
    leases_in_time: float = 0.0
    leases_failed: float = 0.0
    groups_clean: float = 0.0
    groups_blamed: float = 0.0
    audits_passed: float = 0.0
    audits_failed: float = 0.0
    bytes_given: float = 0.0
    bytes_had: float = 0.0


class SoftStrike(Enum):
    """What puts a peer into quarantine, in words."""

    AUDITS = "an audit failed lately"
    ABANDONED = "leases are abandoned more often than chance explains"
    BLAMED = "groups are refused for what a working node never sends"


class Band(Enum):
    """A reputation in a word. The value is its name in notes and reports."""

    NEW = "new"
    STEADY = "steady"
    FAIR = "fair"
    UNSTEADY = "unsteady"
    QUARANTINED = "quarantined"
    BANNED = "banned"


@dataclass(frozen=True, kw_only=True)
class Reputation:
    """Shares in [0, 1], the soft strikes that stand, and what they were made of."""

    availability: float
    timeliness: float
    honesty: float
    soundness: float
    service: float
    strikes: tuple[SoftStrike, ...]
    lately: Lately
    banned: bool = False

    @property
    def score(self) -> float:
        """The product of the four shares, and what service adds to it."""
        bare = self.availability * self.timeliness * self.honesty * self.soundness
        return bare + (1.0 - bare) * SERVICE_GAIN * self.service

    @property
    def is_quarantined(self) -> bool:
        return bool(self.strikes) and not self.banned

    @property
    def band(self) -> Band:
        if self.banned:
            return Band.BANNED
        if self.strikes:
            return Band.QUARANTINED
        if self.lately.leases_in_time + self.lately.leases_failed < NEW_BELOW:
            return Band.NEW
        return Band.STEADY if self.score >= STEADY else Band.FAIR if self.score >= FAIR else Band.UNSTEADY


def reputation_of(days: Iterable[ObservedDay], today: int, *, banned: bool = False) -> Reputation:
    """The reputation on day `today` that follows from these observations; later days, and old ones, count nothing."""
    seen = lately(days, today)
    failed = max(0.0, (1.0 - FORGIVEN) * seen.audits_failed - FORGIVEN * seen.audits_passed)
    standing = {
        SoftStrike.AUDITS: failed >= QUARANTINE_STRIKES,
        SoftStrike.ABANDONED: is_beyond_chance(seen.leases_failed, seen.leases_in_time, MOST_ABANDONED),
        SoftStrike.BLAMED: is_beyond_chance(seen.groups_blamed, seen.groups_clean, MOST_BLAMED),
    }
    return Reputation(
        availability=_share(seen.present_ms, seen.missed_ms, PRIOR_MS),
        timeliness=_share(seen.leases_in_time, seen.leases_failed, PRIOR),
        honesty=_share(seen.groups_clean, seen.groups_blamed, PRIOR),
        soundness=2.0**-failed,
        service=_service(seen.bytes_given, seen.bytes_had),
        strikes=tuple(strike for strike, stands in standing.items() if stands),
        lately=seen,
        banned=banned,
    )


def lately(days: Iterable[ObservedDay], today: int) -> Lately:
    """Sums over the window, half as heavy every HALF_LIFE_DAYS."""
    sums = dict.fromkeys(COUNTS, 0.0)
    for one in days:
        if 0 <= (age := today - one.day) <= WINDOW_DAYS:
            for name in COUNTS:
                sums[name] += WEIGHTS[age] * getattr(one, name)
    return Lately(**sums)


def is_beyond_chance(bad: float, good: float, rate: float) -> bool:
    """Whether so many bad ones are improbable (CHANCE) for somebody of whom a share of `rate` is bad.

    Chernoff's bound, which holds for counts weighted by at most 1 as well: E[exp(w x)] <= E[exp(x)]^w.
    """
    total = bad + good
    if bad <= rate * total:
        return False
    evidence = bad * math.log(bad / (rate * total))
    if good > 0:
        evidence += good * math.log(good / ((1 - rate) * total))
    return evidence >= -math.log(CHANCE)


def _share(good: float, bad: float, prior: float) -> float:
    """good / (good + bad), in the form that rounds the same way whichever grows."""
    return 1.0 / (1.0 + bad / (good + prior))


def _service(given: float, had: float) -> float:
    """1 for who gave as much as it had of others; 0, which costs nothing, for who gave nothing or cannot."""
    return 0.0 if given <= 0 else 1.0 if given >= had else given / had
