"""A ledger as it is at one moment, to be read while its learner may go on writing.

Invariants:
- Everything that one reader says is of one moment; nothing is ever created or changed.
- Sums are made by SQLite: memory does not grow with the number of records.
- A ledger that an older program wrote lacks some tables, and tells less.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from learner.ledger.evidence import Evidence
from learner.ledger.queries.peers import PeerQueries
from learner.ledger.queries.training import TrainingQueries
from learner.ledger.queries.trust import TrustQueries
from learner.ledger.queries.work import WorkQueries
from learner.ledger.reputation import Judging, observed_days
from learner.ledger.sqlite.database import Snapshot, snapshot
from protocol.accounting.reputation import ObservedDay
from protocol.core.ids import PeerId


class LedgerReader:
    """What a ledger says, by subject."""

    def __init__(self, db: Snapshot) -> None:
        self._db = db
        self.training, self.work, self.peers = TrainingQueries(db), WorkQueries(db), PeerQueries(db)
        self.trust, self.evidence = TrustQueries(db), Evidence(db)

    def observed_days(self, now_ms: int, judging: Judging) -> dict[PeerId, list[ObservedDay]]:
        """See `learner.ledger.reputation`."""
        return observed_days(self._db, now_ms, judging)


@contextmanager
def read_ledger(path: Path) -> Iterator[LedgerReader]:
    """The ledger at `path`. Raises LedgerError, naming the file and the next step, when it is missing, unreadable, or
    of another program."""
    with snapshot(path) as db:
        yield LedgerReader(db)
