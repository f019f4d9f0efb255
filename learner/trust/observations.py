"""Add up a peer's sessions and leases, day by day: the parts of an observation that need more than counting.

Pure.

Invariants:

- Time counts once, however many sessions cover it.
- No peer misses time in which the learner itself was away, or after a farewell.
- Leases that an owner gives up to use the machine are excused, a few times a day.
- Nothing before the operator's pardon counts against a peer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from protocol.accounting.reputation import DAY_MS

MISSED_MS = 600_000
"""Milliseconds that a peer misses at most each time it vanishes. By then others have taken over its work. A peer that
is unplugged every evening is hardly worse for being here two hours a day instead of ten."""

EXCUSED_A_DAY = 3
"""How often in a day an owner may take the machine back, with any leases that it has then."""

OCCASION_MS = 60_000
"""Leases that are given up within this time are given up for one reason."""


@dataclass(frozen=True, kw_only=True, order=True)
class Presence:
    """One session of a peer; `vanished`: it ended without a farewell, and not by the learner."""

    began_ms: int
    ended_ms: int
    vanished: bool = False


def present(presences: Iterable[Presence]) -> Counter[int]:
    """Return the milliseconds of each day that at least one of `presences` covers."""
    found: Counter[int] = Counter()
    until_ms = 0
    for presence in sorted(presences):
        _add(found, max(presence.began_ms, until_ms), presence.ended_ms)
        until_ms = max(until_ms, presence.ended_ms)
    return found


def missed(
    presences: Iterable[Presence], starts_ms: Sequence[int], now_ms: int, *, pardoned_ms: int = 0
) -> Counter[int]:
    """Return the milliseconds of each day that the peer was missing after it had vanished: MISSED_MS each time at most,
    and none if the learner was started (`starts_ms`) before the peer came back."""
    found: Counter[int] = Counter()
    starts_ms = sorted(starts_ms)
    until_ms, vanished = 0, False
    for presence in [*sorted(presences), Presence(began_ms=now_ms, ended_ms=now_ms)]:
        is_ours = bisect_right(starts_ms, presence.began_ms) > bisect_right(starts_ms, until_ms)
        if vanished and not is_ours and until_ms >= pardoned_ms:
            _add(found, until_ms, min(presence.began_ms, until_ms + MISSED_MS))
        if presence.ended_ms >= until_ms:
            until_ms, vanished = presence.ended_ms, presence.vanished
    return found


def abandoned(given_up_ms: Iterable[int]) -> Counter[int]:
    """Return how many of the leases that were given up at these times are not excused, by day."""
    found: Counter[int] = Counter()
    occasions: Counter[int] = Counter()
    began_ms: int | None = None
    for at_ms in sorted(given_up_ms):
        if began_ms is None or at_ms - began_ms > OCCASION_MS:
            began_ms = at_ms
            occasions[at_ms // DAY_MS] += 1
        if occasions[began_ms // DAY_MS] > EXCUSED_A_DAY:
            found[at_ms // DAY_MS] += 1
    return found


def days_in(counts: Collection[Counter[int]]) -> list[int]:
    """Return the days with any counts."""
    return sorted({day for one in counts for day, number in one.items() if number})


def _add(found: Counter[int], began_ms: int, ended_ms: int) -> None:
    """Add a stretch of time, cut at midnights."""
    while began_ms < ended_ms:
        day = began_ms // DAY_MS
        end_ms = min(ended_ms, (day + 1) * DAY_MS)
        found[day] += end_ms - began_ms
        began_ms = end_ms
