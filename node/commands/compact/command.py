"""`volery compact`: packs the receipts of leases that ended long ago, and gives free room in the ledger back.

What always holds: no learner works there meanwhile; a kill or a full disk at any point loses nothing, and the same
command goes on from there.
"""

from __future__ import annotations

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


def compact(target: Path | None, keep_days: float | None) -> str:
    """Do it, and return what was done. `keep_days` None: as swarm.toml has it. Raises UsageError, RunError."""
    place = find_place(target)
    if not place.is_learner:
        raise UsageError(f"{place.state} is a rollout node's: only a learner keeps a ledger. Name a swarm.toml.")
    path = place.books
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
    return (
        f"Packed {counted(packed, 'receipt')} of leases that ended more than {keep_days:g} days ago. {path} has "
        f"{size(after)}, and had {size(before)}. Nothing was lost: receipts read as they were signed."
    )
