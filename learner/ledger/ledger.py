"""The learner's memory: leases, verdicts, receipts, versions, steps and what every peer did, in SQLite.

What always holds is what its books promise, each in its first paragraph; they are written in one file, so that what
belongs together is on disk together (`transaction`). Synchronous: the node calls it on a worker thread.
"""

from __future__ import annotations

from learner.ledger.evidence import EvidenceBook
from learner.ledger.peers import PeerBook
from learner.ledger.training import ChainBook
from learner.ledger.trust import TrustBook
from learner.ledger.work import WorkBook


class Ledger(WorkBook, ChainBook, PeerBook, EvidenceBook, TrustBook):
    """See the module's paragraph. Safe to call from several threads; calls are serialised."""
