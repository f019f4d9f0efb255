"""Allocate what each peer did in its presences to the accounts of versions, starts and days. Pure.

Invariants:

- Within a presence everything is spread evenly; costs are spread over the active time, not over standby.
- Tokens count when their records came.
- The rows of a table add up to the report's totals, to the last token, byte and millionth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime

from node.reports.model.costs import Account, Accounts
from node.reports.model.presences import Presence
from node.reports.model.report import PeerReport, Role, SwarmReport
from node.reports.model.time_spread import Piece, divided

DAY_MS = 86_400_000

MAX_DAYS = 36_525
"""A hundred years. If a ledger's clock was once set otherwise, its oldest days become one."""

BEFORE = "before"
"""The name of the time before the first version."""

Received = tuple[int, int]
"""When records came, in milliseconds since 1970, and how many of their tokens count."""


def accounts_of(report: SwarmReport, received: Iterable[Received]) -> Accounts:
    """Return the accounts of the run of `report`, which has none yet."""
    started_ms, ended_ms = report.started_ms, report.ended_ms
    ledger = _Ledger(report.peers, [((at_ms - started_ms) / 1000, tokens) for at_ms, tokens in received])
    began_s, ended_s = ledger.began_s, max((ended_ms - started_ms) / 1000, ledger.ended_s)
    published = sorted(report.versions, key=lambda version: version.at_s)
    named = [BEFORE, *(str(version.version) for version in published)]
    by_version = ledger.table(named, [version.at_s for version in published], began_s, ended_s)
    starts = [str(one.number) for one in report.incarnations] or ["1"]
    by_run = ledger.table(starts, [one.at_s for one in report.incarnations[1:]], began_s, ended_s)
    days = _days(started_ms + round(1000 * began_s), started_ms + round(1000 * ended_s))
    cuts = [(day_ms - started_ms) / 1000 for day_ms in days[1:]]
    by_day = ledger.table([_date(day_ms) for day_ms in days], cuts, began_s, ended_s)
    return Accounts(
        versions=by_version[1:] if by_version[0].is_empty else by_version,
        runs=by_run,
        days=tuple(day for day in by_day if not day.is_empty),
    )


def cost_pieces(peer: PeerReport) -> list[Piece]:
    """Return a peer's cost, spread over its active time."""
    return _pieces(peer, peer.cost, lambda presence: presence.active_s)


def _pieces(peer: PeerReport, amount: float, weight: Callable[[Presence], float]) -> list[Piece]:
    """Spread `amount` over the presences of a peer by weight; without any weight, it falls on the start of the
    first."""
    whole = sum(weight(presence) for presence in peer.presences)
    if amount and not whole > 0:
        began_s = min((presence.began_s for presence in peer.presences), default=0.0)
        return [Piece(began_s=began_s, ended_s=began_s, amount=amount)]
    return [
        Piece(began_s=presence.began_s, ended_s=presence.ended_s, amount=amount * weight(presence) / whole)
        for presence in peer.presences
        if whole > 0 and weight(presence)
    ]


class _Ledger:
    """Everything that is spread over time, and the integers that it must add up to."""

    def __init__(self, peers: Sequence[PeerReport], tokens: Sequence[tuple[float, int]]) -> None:
        presences = [presence for peer in peers for presence in peer.presences]
        self.began_s = min((presence.began_s for presence in presences), default=0.0)
        self.ended_s = max((presence.ended_s for presence in presences), default=0.0)
        self._is_metered = any(peer.joules is not None for peer in peers)
        self._tokens = [Piece(began_s=at_s, ended_s=at_s, amount=amount) for at_s, amount in tokens]
        self._num_tokens = sum(amount for _, amount in tokens)
        self._peers = peers
        self._active = self._spread(lambda peer: peer.active_s, lambda presence: presence.active_s)
        self._standby = self._spread(lambda peer: peer.standby_s, lambda presence: presence.standby_s)
        self._joules = self._spread(lambda peer: peer.joules or 0.0, lambda presence: presence.joules)
        self._up = self._spread(lambda peer: peer.bytes_up, lambda presence: presence.bytes_up)
        self._down = self._spread(lambda peer: peer.bytes_down, lambda presence: presence.bytes_down)

    def _spread(self, amount: Callable[[PeerReport], float], weight: Callable[[Presence], float]) -> list[Piece]:
        return [piece for peer in self._peers for piece in _pieces(peer, amount(peer), weight)]

    def table(self, names: Sequence[str], cuts: Sequence[float], began_s: float, ended_s: float) -> tuple[Account, ...]:
        """Return a row for each name: before, between and after the cuts; there is one cut less than names."""
        peers = self._peers
        active = divided(round(1000 * sum(peer.active_s for peer in peers)), self._active, cuts)
        standby = divided(round(1000 * sum(peer.standby_s for peer in peers)), self._standby, cuts)
        joules = divided(round(sum(peer.joules or 0.0 for peer in peers)), self._joules, cuts)
        up = divided(sum(peer.bytes_up for peer in peers), self._up, cuts)
        down = divided(sum(peer.bytes_down for peer in peers), self._down, cuts)
        tokens = divided(self._num_tokens, self._tokens, cuts)
        costs = {
            currency: (self._costs(currency, Role.ROLLOUT, cuts), self._costs(currency, Role.LEARNER, cuts))
            for currency in sorted({peer.price.currency for peer in peers if peer.cost_micros})
        }
        bounds = [min([began_s, *cuts]), *cuts, max([ended_s, *cuts])]
        return tuple(
            Account(
                name=name,
                began_s=bounds[at],
                ended_s=bounds[at + 1],
                active_ms=active[at],
                standby_ms=standby[at],
                costs={currency: asked[at] + own[at] for currency, (asked, own) in costs.items()},
                learners={currency: own[at] for currency, (_, own) in costs.items() if any(own)},
                joules=joules[at] if self._is_metered else None,
                bytes_up=up[at],
                bytes_down=down[at],
                tokens=tokens[at],
            )
            for at, name in enumerate(names)
        )

    def _costs(self, currency: str, role: Role, cuts: Sequence[float]) -> list[int]:
        peers = [peer for peer in self._peers if peer.price.currency == currency and peer.role is role]
        pieces = [piece for peer in peers for piece in cost_pieces(peer)]
        return divided(sum(peer.cost_micros for peer in peers), pieces, cuts)


def _days(began_ms: int, ended_ms: int) -> list[int]:
    """Return the midnights (UTC) from the last one before the beginning to the last one before the end."""
    last = ended_ms // DAY_MS
    first = max(min(began_ms // DAY_MS, last), last - MAX_DAYS + 1)
    return [day * DAY_MS for day in range(first, last + 1)]


def _date(day_ms: int) -> str:
    """Return a date as 2026-01-31; outside the calendar, the number of days since 1970."""
    try:
        return f"{datetime.fromtimestamp(day_ms / 1000, UTC):%Y-%m-%d}"
    except (OverflowError, OSError, ValueError):
        return str(day_ms // DAY_MS)
