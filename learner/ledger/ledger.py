"""The learner's memory: leases, verdicts, receipts, versions, steps and what every peer did, in SQLite.

What always holds is what its books promise, each in its first paragraph; they are written in one file, so that what
belongs together is on disk together (`transaction`). Synchronous: the node calls it on a worker thread.
"""

from __future__ import annotations

from learner.ledger.evidence import Evidence
from learner.ledger.peers import PeerLedger
from learner.ledger.training import TrainingLedger
from learner.ledger.trust import TrustLedger
from learner.ledger.work import WorkLedger


class Ledger(WorkLedger, TrainingLedger, PeerLedger, TrustLedger):
    """See the module's paragraph. Safe to call from several threads; calls are serialised."""

    @property
    def evidence(self) -> Evidence:
        """What this ledger can show."""
        return Evidence(self)
