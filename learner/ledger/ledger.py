"""The learner's memory: leases, verdicts, receipts, versions, steps and what every peer did, in SQLite.

What always holds is what its books promise, each in its first paragraph; they are written in one file, so that what
belongs together is on disk together (`transaction`). Synchronous: the node calls it on a worker thread.
"""

from __future__ import annotations

from pathlib import Path

from learner.ledger.compaction import Compaction
from learner.ledger.evidence import Evidence
from learner.ledger.peers import PeerLedger
from learner.ledger.sqlite.database import LedgerFile
from learner.ledger.training import TrainingLedger
from learner.ledger.trust import TrustLedger
from learner.ledger.work import WorkLedger


class Ledger(LedgerFile):
    """The file, and its books. Safe to call from several threads; calls are serialised. Raises LedgerError."""

    def __init__(self, path: Path, *, swarm: bytes) -> None:
        super().__init__(path, swarm=swarm)
        self.work, self.training, self.peers = WorkLedger(self), TrainingLedger(self), PeerLedger(self)
        self.trust, self.evidence = TrustLedger(self), Evidence(self)
        self.compaction = Compaction(self)
