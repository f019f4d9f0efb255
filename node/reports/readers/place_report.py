"""Read the report of a learner or a node from its state directory."""

from __future__ import annotations

from contextlib import closing

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
