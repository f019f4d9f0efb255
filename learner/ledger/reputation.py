"""Read what the ledger observed of each peer, day by day, in the form that `protocol.accounting.reputation` takes.

A ledger that an older program wrote lacks some tables, and so yields fewer observations.

Invariants:

- The same ledger gives the same days up to the requested one, whenever and by whom they are requested.
- Nothing here writes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field

from learner.ledger.sqlite.files import Queries
from learner.trust.observations import Presence, abandoned, days_in, missed, present
from protocol.accounting.reputation import COUNTS, DAY_MS, WINDOW_DAYS, ObservedDay
from protocol.core.ids import PeerId
from protocol.work import IN_GOOD_ORDER, Rule

LATE = (Rule.LATE.value, Rule.UNKNOWN_LEASE.value)

PARDON = "pardon"
BAN = "ban"
"""Decisions of the operator, as the ledger stores them."""

BANNED = "banned"
OUT_OF_HOURS = "gone outside its owner's hours"
"""Why a session ended: its connection broke or it timed out while the peer was outside its hours or paused, so that no
work was expected of it."""

EXCUSED = frozenset({IN_GOOD_ORDER, BANNED, OUT_OF_HOURS})
"""Reasons for the end of a session that do not mean that the peer vanished. Every other reason means that the
connection broke or the peer timed out. A session without a reason is still open, or ended when the learner stopped."""


@dataclass(frozen=True, kw_only=True)
class Judging:
    """The rules that count against a peer (`blaming`), and the reasons that excuse the end of a session (`excused`)."""

    blaming: Collection[Rule]
    excused: Collection[str]


@dataclass(kw_only=True)
class _Seen:
    """The counts of one peer while they are added up."""

    counts: dict[str, Counter[int]] = field(default_factory=lambda: {name: Counter() for name in COUNTS})
    presences: list[Presence] = field(default_factory=list)
    given_up_ms: list[int] = field(default_factory=list)
    pardoned_ms: int = 0


def observed_days(db: Queries, now_ms: int, judging: Judging) -> dict[PeerId, list[ObservedDay]]:
    """Return, for each rollout peer, the days of the window up to `now_ms` with at least one observation, in order."""
    seen: defaultdict[str, _Seen] = defaultdict(_Seen)
    since_ms = (now_ms // DAY_MS - WINDOW_DAYS) * DAY_MS
    pardons = "SELECT peer, max(at_ms) FROM decisions WHERE what = ? GROUP BY peer"
    for peer, at_ms in db.query(pardons, (PARDON,), of="decisions"):
        seen[peer].pardoned_ms = at_ms
    _see_presences(db, seen, since_ms, judging)
    _see_leases(db, seen, since_ms)
    _see_verdicts(db, seen, since_ms, judging)
    _see_audits(db, seen, since_ms)
    _see_relays(db, seen, since_ms)
    starts_ms = [began_ms for (began_ms,) in db.query("SELECT began_ms FROM incarnations ORDER BY began_ms")]
    return {PeerId(peer): _days(one, starts_ms, now_ms) for peer, one in seen.items()}


def _days(one: _Seen, starts_ms: list[int], now_ms: int) -> list[ObservedDay]:
    one.counts["present_ms"] = present(one.presences)
    one.counts["missed_ms"] = missed(one.presences, starts_ms, now_ms, pardoned_ms=one.pardoned_ms)
    one.counts["leases_failed"] += abandoned(one.given_up_ms)
    today = now_ms // DAY_MS
    return [
        ObservedDay(day=day, **{name: counted[day] for name, counted in one.counts.items()})
        for day in days_in(one.counts.values())
        if today - WINDOW_DAYS <= day <= today
    ]


def _see_presences(db: Queries, seen: defaultdict[str, _Seen], since_ms: int, judging: Judging) -> None:
    rows = db.query("SELECT peer, began_ms, ended_ms, reason FROM presence WHERE ended_ms >= ?", (since_ms,))
    for peer, began_ms, ended_ms, reason in rows:
        vanished = bool(reason) and reason not in judging.excused
        seen[peer].presences.append(Presence(began_ms=max(began_ms, since_ms), ended_ms=ended_ms, vanished=vanished))


def _see_leases(db: Queries, seen: defaultdict[str, _Seen], since_ms: int) -> None:
    """Count delivered leases as in time and clean, until `_see_verdicts` says otherwise, and the leases that failed."""
    for peer, day, number in db.query(
        f"SELECT peer, closed_ms / {DAY_MS}, count(*) FROM leases WHERE status = 'delivered' AND closed_ms >= ?"
        " GROUP BY 1, 2",
        (since_ms,),
    ):
        seen[peer].counts["leases_in_time"][day] = number
        seen[peer].counts["groups_clean"][day] = number
    recalled = "AND lease NOT IN (SELECT lease FROM recalled)" if db.has_table("recalled") else ""
    for peer, status, closed_ms in db.query(
        "SELECT peer, status, closed_ms FROM leases WHERE status IN ('expired', 'returned', 'lost') AND closed_ms >= ?"
        f" {recalled}",
        (since_ms,),
    ):
        one = seen[peer]
        if closed_ms < one.pardoned_ms:
            continue
        if status == "expired":
            one.counts["leases_failed"][closed_ms // DAY_MS] += 1
        else:
            one.given_up_ms.append(closed_ms)


def _see_verdicts(db: Queries, seen: defaultdict[str, _Seen], since_ms: int, judging: Judging) -> None:
    """Count each lease with late or blamed records once. If it ended before the peer's pardon, it counts neither for
    nor against the peer."""
    rules = [*LATE, *(rule.value for rule in judging.blaming)]
    marks = ", ".join("?" * len(rules))
    blaming = {rule.value for rule in judging.blaming}
    found: defaultdict[tuple[str, bytes, int], set[str]] = defaultdict(set)
    for peer, closed_ms, lease, rule in db.query(
        "SELECT r.peer, l.closed_ms, r.lease, r.rule FROM records r JOIN leases l USING (lease)"
        f" WHERE r.rule <> 'admitted' AND r.rule IN ({marks}) AND l.status = 'delivered' AND l.peer = r.peer"
        " AND l.closed_ms >= ? GROUP BY r.lease, r.rule",
        (*rules, since_ms),
    ):
        found[peer, lease, closed_ms].add(rule)
    for (peer, _, closed_ms), decided_by in found.items():
        day, counts, pardoned_ms = closed_ms // DAY_MS, seen[peer].counts, seen[peer].pardoned_ms
        if decided_by & set(LATE):
            counts["leases_in_time"][day] -= 1
            counts["leases_failed"][day] += closed_ms >= pardoned_ms
        if decided_by & blaming:
            counts["groups_clean"][day] -= 1
            counts["groups_blamed"][day] += closed_ms >= pardoned_ms


def _see_audits(db: Queries, seen: defaultdict[str, _Seen], since_ms: int) -> None:
    passed = f"SELECT peer, at_ms / {DAY_MS}, count(*) FROM audits WHERE passed = 1 AND at_ms >= ? GROUP BY 1, 2"
    for peer, day, number in db.query(passed, (since_ms,), of="audits"):
        seen[peer].counts["audits_passed"][day] = number
    failed = "SELECT peer, at_ms FROM audits WHERE passed = 0 AND at_ms >= ?"
    for peer, at_ms in db.query(failed, (since_ms,), of="audits"):
        seen[peer].counts["audits_failed"][at_ms // DAY_MS] += at_ms >= seen[peer].pardoned_ms


def _see_relays(db: Queries, seen: defaultdict[str, _Seen], since_ms: int) -> None:
    for name, who in (("bytes_given", "d.relay"), ("bytes_had", "d.receiver")):
        for peer, day, size in db.query(
            f"SELECT {who}, r.credited_ms / {DAY_MS}, sum(d.bytes) FROM relayed d JOIN relay_receipts r"
            " USING (manifest, receiver) WHERE r.credited_ms >= ? GROUP BY 1, 2",
            (since_ms,),
            of="relayed",
        ):
            seen[peer].counts[name][day] = size
