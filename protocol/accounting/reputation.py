"""Compute a peer's reputation: a score and its parts, from what was observed day by day.

The result depends on counts alone, so all readers of the counts get the same one: a learner, its report, and the reader
of a signed note (`protocol.accounting.reputation_note`). Observations lose half of their weight every HALF_LIFE_DAYS.
The score is the product of four shares in [0, 1]; 1 means no evidence against the peer. The shares are availability (it
does not vanish), timeliness (it delivers leases in time), honesty (no rule blames its groups) and soundness (its audits
pass). Service, the relaying of versions, makes up for a part of what is missing to 1. A lack of service costs nothing.

Invariants:

- Every share and the score are numbers in [0, 1]. A better observation never lowers them.
- The size of a peer matters only through the few good observations that each peer starts with. If two peers have the
  same habits, the smaller one never has the worse score.
- A soft strike needs more than chance explains. It ends with time, with good work, or by the operator's pardon.
- Nothing here bans a peer.
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
"""Number of the rules in this module. A change of a score, a strike or a band must increase it."""

DAY_MS = 86_400_000
"""Milliseconds of a day. Observations are dated by days in UTC, so the counts of a past day never change and can be
repeated."""

HALF_LIFE_DAYS = 7
"""Days in which an observation loses half of its weight. Habits are weekly: a machine lent at weekends is remembered
from one to the next, and a fault that was mended a month ago counts a sixteenth."""

WINDOW_DAYS = 8 * HALF_LIFE_DAYS
"""Age in days of the oldest observations that count. Older ones would weigh less than 1/256."""

PRIOR = 4.0
"""Good observations that each peer starts with. The first bad one then costs a newcomer a fifth."""

PRIOR_MS = 3_600_000.0
"""Milliseconds of presence that each peer starts with."""

FORGIVEN = 1e-3
"""Fraction of audits that may fail without a strike: ten times the largest fraction of honest peers."""

QUARANTINE_STRIKES = 0.5
"""Weighted failed audits from which the soft strike stands. One failed audit counts 1, so it is a strike for a week."""

MOST_ABANDONED = 0.25
"""Fraction of leases that an honest peer's machine or connection may lose in the long run."""

MOST_BLAMED = 0.05
"""Fraction of a working node's groups that may be rejected with blame in the long run. Only defects cause any."""

CHANCE = 1e-3
"""Largest probability, at any one time, that a peer within these fractions is taken for one outside them."""

SERVICE_GAIN = 0.1
"""The part of what is missing to 1 that service makes up for. Service is only stated by receivers, so it may not hide
much."""

NEW_BELOW = 8.0
"""Weighted number of leases below which a peer is called new, because too little is known about it."""

STEADY = 0.9
FAIR = 0.7
"""Lowest scores of the bands of these names."""

Ms = Annotated[int, Meta(ge=0, le=DAY_MS)]


class ObservedDay(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The observations of a peer on one day, which is counted from 1970 in UTC.

    `present_ms`: the peer was connected. `missed_ms`: it was missing and had given no reason. `leases_failed`: leases
    that were delivered late, expired, or were returned more often than is excused. `groups_blamed`: groups rejected by
    a rule that a working node never violates. `bytes_given`, `bytes_had`: bytes of chunks that it gave to other peers
    and got from them, as the receivers signed.
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
"""The weight of a day by its age in days, rounded so that all machines have the same values."""


@dataclass(frozen=True, kw_only=True)
class Lately:
    """The sums of the observations of all days, each weighted by its age."""

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
    """Reasons that put a peer into quarantine. The values are texts for people."""

    AUDITS = "an audit failed lately"
    ABANDONED = "leases are abandoned more often than chance explains"
    BLAMED = "groups are refused for what a working node never sends"


class Band(Enum):
    """A reputation as one word. The value is its name in notes and reports."""

    NEW = "new"
    STEADY = "steady"
    FAIR = "fair"
    UNSTEADY = "unsteady"
    QUARANTINED = "quarantined"
    BANNED = "banned"


@dataclass(frozen=True, kw_only=True)
class Reputation:
    """Shares in [0, 1], the current soft strikes, and the weighted sums that they follow from."""

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
        """The product of the four shares, plus the gain from service."""
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
    """Return the reputation on day `today` from these observations. Days after `today` or before the window are left
    out."""
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
    """Return the sums over the window, with weights that halve every HALF_LIFE_DAYS."""
    sums = dict.fromkeys(COUNTS, 0.0)
    for one in days:
        if 0 <= (age := today - one.day) <= WINDOW_DAYS:
            for name in COUNTS:
                sums[name] += WEIGHTS[age] * getattr(one, name)
    return Lately(**sums)


def is_beyond_chance(bad: float, good: float, rate: float) -> bool:
    """Return whether so many bad observations are improbable (CHANCE) for a peer whose true fraction is `rate`.

    This is Chernoff's bound. It also applies to counts with weights of at most 1: E[exp(w x)] <= E[exp(x)]^w.
    """
    total = bad + good
    if bad <= rate * total:
        return False
    evidence = bad * math.log(bad / (rate * total))
    if good > 0:
        evidence += good * math.log(good / ((1 - rate) * total))
    return evidence >= -math.log(CHANCE)


def _share(good: float, bad: float, prior: float) -> float:
    """Return (good + prior) / (good + prior + bad), in a form that rounds the same way whichever count grows."""
    return 1.0 / (1.0 + bad / (good + prior))


def _service(given: float, had: float) -> float:
    """Return 1 for a peer that gave as many bytes as it got from others; 0, which costs nothing, if it gave none."""
    return 0.0 if given <= 0 else 1.0 if given >= had else given / had
