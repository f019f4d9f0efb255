"""How peers stand while the learner runs: what the ledger observed, looked at now and then.

What always holds: nothing is remembered but what the ledger says, so a restart changes nothing; the file is read beside
the learner's own writing, on a thread, and nobody waits for it; whose strikes stand or fell is told once; what is
signed for a peer says how it stood at the last look.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import trio

from learner.ledger.reputation import observed_days
from learner.ledger.sqlite.database import LedgerError, snapshot
from node.learner_role.shared.context import Service
from node.reports.model.verdict_meanings import JUDGING
from protocol.accounting.reputation import DAY_MS, ObservedDay, SoftStrike, reputation_of
from protocol.accounting.reputation_note import reputation_note
from protocol.core.envelope import sign
from protocol.core.ids import PeerId

REVIEW_S = 300.0
"""Reputations change with days of work; a ledger of a million leases is read in three seconds."""

TOLD_EVERY_MS = 600_000
"""What is newer by less is not worth a signature and seven kilobytes."""


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What had been observed at a moment, of those who were here."""

    at_ms: int
    days: Mapping[PeerId, list[ObservedDay]]


@dataclass(kw_only=True, eq=False)
class ReputationService(Service):
    """See the module's paragraph."""

    wakeup: trio.Event = field(default_factory=trio.Event)
    _quarantined: dict[PeerId, tuple[SoftStrike, ...]] = field(default_factory=dict)
    _seen: _Seen = field(default_factory=lambda: _Seen(at_ms=0, days={}))

    def __post_init__(self) -> None:
        self.signals.peer_judged.subscribe(lambda _: self.wakeup.set())

    def is_quarantined(self, peer: PeerId) -> bool:
        """Whether soft strikes stood against it at the last look."""
        return peer in self._quarantined

    def note(self, peer: PeerId, after_ms: int) -> bytes | None:
        """Its signed reputation as of the last look, if that was long enough after `after_ms`. On any thread."""
        seen = self._seen
        if seen.at_ms - after_ms < TOLD_EVERY_MS or peer not in seen.days:
            return None
        note = reputation_note(
            peer=peer,
            day=seen.at_ms // DAY_MS,
            days=seen.days[peer],
            banned="",  # who is, is not here to ask
            issued_ms=seen.at_ms,
            certificate=self.identity.certificate,
        )
        return sign(self.identity.keypair, self.identity.authority.swarm, note)

    async def run(self) -> None:
        """Look every REVIEW_S, and when a peer was judged; until cancelled."""
        while True:
            self.wakeup = trio.Event()  # before we look, or what comes meanwhile would wake nobody
            await self.review()
            with trio.move_on_after(REVIEW_S):
                await self.wakeup.wait()

    async def review(self) -> None:
        """Look once. A ledger that cannot be read now leaves everybody where they are."""
        try:
            found = await trio.to_thread.run_sync(self._look)
        except LedgerError as error:
            self.events.trouble(f"Reputations could not be looked at, and stay as they were: {error}")
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
        self._seen = _Seen(at_ms=now_ms, days={peer: seen for peer, seen in days.items() if peer in self.state.present})
        reputations = {peer: reputation_of(seen, now_ms // DAY_MS) for peer, seen in days.items()}
        return {peer: found.strikes for peer, found in reputations.items() if found.strikes}
