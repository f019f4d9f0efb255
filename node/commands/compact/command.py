"""Pack the receipts of leases that ended long ago, and return the ledger's free space to the disk (`volery compact`).

Invariants:

- No learner uses the ledger meanwhile.
- A kill or a full disk at any point loses nothing. The same command then continues.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from learner.ledger.compaction import size_of
from learner.ledger.ledger import Ledger
from learner.ledger.sqlite.database import LedgerError
from node.config.swarm_config import KEEP_DAYS
from node.runtime.errors import RunError, UsageError, as_run_error
from node.runtime.events import Clock
from node.runtime.formatting import counted, size
from node.state.learner_state import held_state
from node.state.locate import find_place
from protocol.core.dates import DAY_MS


@dataclass(frozen=True, kw_only=True)
class Compacted:
    """The result: receipts that were packed, and the ledger's size in bytes before and after."""

    ledger: str
    keep_days: float
    packed: int
    before_bytes: int
    after_bytes: int

    @property
    def text(self) -> str:
        """Return the result in words."""
        return (
            f"Packed {counted(self.packed, 'receipt')} of leases that ended more than {self.keep_days:g} days ago. "
            f"{self.ledger} now takes {size(self.after_bytes)}; before, it took {size(self.before_bytes)}. Nothing was "
            "lost: packed receipts can be read as they were signed."
        )


def compact(target: Path | None, keep_days: float | None) -> Compacted:
    """Compact a learner's ledger. `keep_days` None means the value in swarm.toml. Raises UsageError, RunError."""
    place = find_place(target)
    if not place.is_learner:
        raise UsageError(
            f"{place.state} belongs to a rollout node, and only a learner has a ledger. Name a swarm.toml."
        )
    path = place.database
    if not path.exists():
        raise RunError(f"{path}: there is no ledger yet. Start the learner first.")
    if keep_days is None:
        keep_days = KEEP_DAYS if place.config is None else place.config.swarm.keep_days
    before_ms = Clock.now_ms() - round(keep_days * DAY_MS)
    with held_state(place.state) as authority, as_run_error(LedgerError):
        before = size_of(path)
        with Ledger(path, swarm=authority.swarm) as ledger:
            packed = 0
            while found := ledger.compaction.pack_receipts(before_ms):
                packed += found
            ledger.compaction.shrink()
        after = size_of(path)
    return Compacted(ledger=str(path), keep_days=keep_days, packed=packed, before_bytes=before, after_bytes=after)
