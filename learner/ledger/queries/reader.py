"""Read a ledger as it is at one moment, while its learner may go on writing.

Invariants:

- All that one reader returns is of one moment. Nothing is ever created or changed.
- SQLite makes the sums: memory does not grow with the number of records.
- A ledger that an older program wrote lacks some tables, and their queries return nothing.
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
    """The queries of a ledger, by subject."""

    def __init__(self, db: Snapshot) -> None:
        self._db = db
        self.training, self.work, self.peers = TrainingQueries(db), WorkQueries(db), PeerQueries(db)
        self.trust, self.evidence = TrustQueries(db), Evidence(db)

    def observed_days(self, now_ms: int, judging: Judging) -> dict[PeerId, list[ObservedDay]]:
        """Return each peer's observations by day (`learner.ledger.reputation`)."""
        return observed_days(self._db, now_ms, judging)


@contextmanager
def read_ledger(path: Path) -> Iterator[LedgerReader]:
    """Yield the ledger at `path`. Raises LedgerError, naming the file and the next step, when it is missing,
    unreadable, or of another program."""
    with snapshot(path) as db:
        yield LedgerReader(db)
