"""Compute peers' reputations from the ledger from time to time, and sign notes of them; and, if they are told, ranks.

Invariants:

- Everything is computed from the ledger, so a restart changes nothing.
- The ledger is read on a thread beside the learner's writes, and nothing waits for it.
- Each change of a peer's strikes is reported once.
- A signed note and a rank say how the peer stood at the last review.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import trio

from learner.ledger.queries.work import WorkQueries
from learner.ledger.reputation import observed_days
from learner.ledger.sqlite.database import LedgerError, snapshot
from node.learner_role.shared.context import Service
from node.reports.model.verdict_meanings import JUDGING
from protocol.accounting.rank import Rank, ranks_of
from protocol.accounting.reputation import DAY_MS, ObservedDay, SoftStrike, reputation_of
from protocol.accounting.reputation_note import reputation_note
from protocol.core.envelope import sign
from protocol.core.ids import PeerId
from protocol.work import Rule

REVIEW_S = 300.0
"""Seconds between two reviews. Reputations change over days of work, and reading a ledger of a million leases takes
three seconds. Ranks take a third of a second more for a million records."""

TOLD_EVERY_MS = 600_000
"""Least milliseconds by which a note is newer than the one before: a smaller difference does not justify a signature
and seven kilobytes."""


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """The observations of present peers, at one moment."""

    at_ms: int
    days: Mapping[PeerId, list[ObservedDay]]
    ranks: Mapping[PeerId, Rank]


@dataclass(kw_only=True, eq=False)
class ReputationService(Service):
    """Reviews reputations, and knows which peers are in quarantine.

    tells_ranks: whether peers are told their ranks.
    """

    tells_ranks: bool = False
    wakeup: trio.Event = field(default_factory=trio.Event)
    _quarantined: dict[PeerId, tuple[SoftStrike, ...]] = field(default_factory=dict)
    _seen: _Seen = field(default_factory=lambda: _Seen(at_ms=0, days={}, ranks={}))

    def __post_init__(self) -> None:
        self.signals.peer_judged.subscribe(lambda _: self.wakeup.set())

    def is_quarantined(self, peer: PeerId) -> bool:
        """Return whether the peer had soft strikes at the last review."""
        return peer in self._quarantined

    def note(self, peer: PeerId, after_ms: int) -> bytes | None:
        """Return a peer's signed reputation as of the last review, if that was long enough after `after_ms`.

        May run on any thread.
        """
        seen = self._seen
        if seen.at_ms - after_ms < TOLD_EVERY_MS or peer not in seen.days:
            return None
        note = reputation_note(
            peer=peer,
            day=seen.at_ms // DAY_MS,
            days=seen.days[peer],
            banned="",  # a banned peer is not here to ask
            issued_ms=seen.at_ms,
            certificate=self.identity.certificate,
        )
        return sign(self.identity.keypair, self.identity.authority.swarm, note)

    def rank(self, peer: PeerId) -> Rank | None:
        """Return a peer's rank as of the last review; None if it has none, or ranks are not told.

        May run on any thread.
        """
        return self._seen.ranks.get(peer)

    async def run(self) -> None:
        """Review every REVIEW_S, and when a peer was judged, until cancelled."""
        while True:
            self.wakeup = trio.Event()  # before the review, so that news that comes meanwhile wakes us
            await self.review()
            with trio.move_on_after(REVIEW_S):
                await self.wakeup.wait()

    async def review(self) -> None:
        """Review all peers once. If the ledger cannot be read now, nothing changes."""
        try:
            found = await trio.to_thread.run_sync(self._look)
        except LedgerError as error:
            self.events.trouble(f"Reputations could not be reviewed, and stay as they were: {error}")
            return
        before, self._quarantined = self._quarantined, found
        for peer, strikes in found.items():
            if before.get(peer) != strikes:
                said = "; ".join(strike.value for strike in strikes)
                self.events.emit("peer_quarantined", peer=peer, reason=said)
        for peer in before.keys() - found.keys():
            self.events.emit("quarantine_over", peer=peer)
        if before.keys() != found.keys():
            self.signals.quarantine_changed.emit(None)

    def _look(self) -> dict[PeerId, tuple[SoftStrike, ...]]:
        now_ms = self.context.signing_ms()
        with snapshot(self.ledger.path) as db:
            days = observed_days(db, now_ms, JUDGING)
            verdicts = WorkQueries(db).verdicts_by_peer() if self.tells_ranks else {}
        here = {peer: seen for peer, seen in days.items() if peer in self.state.present}
        ranks = ranks_of({PeerId(peer): by_rule[Rule.ADMITTED] for peer, by_rule in verdicts.items()})
        self._seen = _Seen(at_ms=now_ms, days=here, ranks=ranks)
        reputations = {peer: reputation_of(seen, now_ms // DAY_MS) for peer, seen in days.items()}
        return {peer: found.strikes for peer, found in reputations.items() if found.strikes}
