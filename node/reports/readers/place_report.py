"""Read the report of a learner or a node from its state directory, at a pace that costs little.

Reading takes longer the longer the run is. Programs that read again and again wait as much longer (`pause_after`), and
need not read what has not changed (`mark_of`).
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import msgspec

from learner.ledger.sqlite.database import LedgerError
from node.config.swarm_config import SwarmConfig
from node.reports.model.costs import CostTerms, Reference
from node.reports.model.report import OwnReport, SwarmReport
from node.reports.readers.ledger_report import swarm_report
from node.reports.readers.receipts_report import own_report
from node.runtime.errors import as_run_error
from node.state.about import read_about
from node.state.keys import load_key
from node.state.locate import StateLocation
from node.state.receipt_queries import ReceiptQueries, ReceiptsError

PAUSE_OF_COST = 40.0
"""Pause after reading a report, as a multiple of the processor's seconds that it took: a fortieth of a core."""


def pause_after(cost_s: float, least_s: float) -> float:
    """Return the seconds to wait after a reading that took the processor `cost_s` seconds; at least `least_s`."""
    return max(least_s, PAUSE_OF_COST * cost_s)


def mark_of(place: StateLocation) -> object:
    """Return a value that differs once the ledger or the receipts have changed. It reads neither."""
    log = place.database.with_name(f"{place.database.name}-wal")
    return tuple(map(_mark, (place.database, log)))


def _mark(path: Path) -> tuple[int, int, int] | None:
    """Return what a write to `path` changes. An empty log is like none: readers make and remove it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns) if found.st_size else None


def cost_terms(config: SwarmConfig) -> CostTerms:
    """Return the prices that an operator's report compares costs with."""
    cost, reference = config.cost, None
    if cost.reference_per_hour is not None and cost.reference_tokens_per_s is not None:
        reference = Reference(
            name=cost.reference, per_hour=cost.reference_per_hour, tokens_per_s=cost.reference_tokens_per_s
        )
    return CostTerms(currency=config.price.currency, per_kwh=cost.per_kwh, reference=reference)


def read_report(place: StateLocation, *, with_history: bool = False) -> SwarmReport | OwnReport:
    """Read the ledger or the receipts at `place`, for a page with the history as well. Raises RunError."""
    with as_run_error(LedgerError, ReceiptsError):
        if place.is_learner:
            ledger, config = place.state / "ledger.sqlite", place.config
            if config is None:
                return swarm_report(ledger, with_history=with_history)
            staleness, terms = config.learn.staleness, cost_terms(config)
            return swarm_report(ledger, staleness=staleness, terms=terms, with_history=with_history)
        with closing(ReceiptQueries(place.state / "receipts.sqlite")) as receipts:
            about = msgspec.structs.asdict(read_about(place.state))
            return own_report(receipts, peer=load_key(place.key).peer_id, **about, with_history=with_history)
