"""Who is in quarantine while the learner runs: what the ledger observed, looked at now and then.

What always holds: nothing is remembered but what the ledger says, so a restart changes nothing; the file is read beside
the learner's own writing, on a thread, and nobody waits for it; whose strikes stand or fell is told once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from learner.ledger_file import LedgerError, snapshot
from learner.ledger_reputation import observed_days
from node.events import EventLog
from node.reports.rules import JUDGING
from protocol.ids import PeerId
from protocol.reputation import DAY_MS, SoftStrike, reputation_of

REVIEW_S = 300.0
"""Reputations change with days of work; a ledger of a million leases is read in three seconds."""


@dataclass(kw_only=True)
class ReputationDesk:
    """See the module's paragraph. `changed` is told when somebody came into quarantine, or out of it."""

    ledger: Path
    now_ms: Callable[[], int]
    events: EventLog
    changed: Callable[[], None] = lambda: None
    stirred: trio.Event = field(default_factory=trio.Event)
    _quarantined: dict[PeerId, tuple[SoftStrike, ...]] = field(default_factory=dict)

    def is_quarantined(self, peer: PeerId) -> bool:
        """Whether soft strikes stood against it at the last look."""
        return peer in self._quarantined

    def call(self) -> None:
        """Look again soon: an audit failed, or the operator decided something."""
        self.stirred.set()

    async def watch(self) -> None:
        """Look every REVIEW_S, and when called; until cancelled."""
        while True:
            self.stirred = trio.Event()  # before we look, or what comes meanwhile would wake nobody
            await self.review()
            with trio.move_on_after(REVIEW_S):
                await self.stirred.wait()

    async def review(self) -> None:
        """Look once. A ledger that cannot be read now leaves everybody where they are."""
        try:
            found = await trio.to_thread.run_sync(self._look)
        except LedgerError as error:
            self.events.emit("trouble", text=f"Reputations could not be looked at, and stay as they were: {error}")
            return
        before, self._quarantined = self._quarantined, found
        for peer, strikes in found.items():
            if before.get(peer) != strikes:
                self.events.emit("peer_quarantined", peer=peer, reason=in_words(strikes))
        for peer in before.keys() - found.keys():
            self.events.emit("quarantine_over", peer=peer)
        if before.keys() != found.keys():
            self.changed()

    def _look(self) -> dict[PeerId, tuple[SoftStrike, ...]]:
        now_ms = self.now_ms()
        with snapshot(self.ledger) as db:
            days = observed_days(db, now_ms, JUDGING)
        reputations = {peer: reputation_of(seen, now_ms // DAY_MS) for peer, seen in days.items()}
        return {peer: found.strikes for peer, found in reputations.items() if found.strikes}


def in_words(strikes: tuple[SoftStrike, ...]) -> str:
    """Soft strikes as the end of a sentence."""
    return "; ".join(strike.value for strike in strikes)
