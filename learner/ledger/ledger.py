"""Open the learner's ledger: leases, verdicts, receipts, versions, steps and what every peer did, in SQLite.

Each part of the ledger states its own invariants. All parts are in one file, so that rows that belong together reach
the disk together (`transaction`). Synchronous: the node calls it on a worker thread.
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
    """The ledger's file and its parts. Several threads may call it; calls are serialised. Raises LedgerError."""

    def __init__(self, path: Path, *, swarm: bytes) -> None:
        super().__init__(path, swarm=swarm)
        self.work, self.training, self.peers = WorkLedger(self), TrainingLedger(self), PeerLedger(self)
        self.trust, self.evidence = TrustLedger(self), Evidence(self)
        self.compaction = Compaction(self)
