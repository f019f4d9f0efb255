"""What audits found of a peer: the one place where its page tells of them.

Pure. The ledger holds no audits yet, so there is nothing to tell and the page has no such section. Whoever adds them
puts their facts into `PeerReport` or `PeerHistory`, and fills in here what a reader needs: how many tokens were looked
at, what was found, what follows from it for the peer, and since when.
"""

from __future__ import annotations

from node.reports.facts import PeerReport
from node.reports.history import PeerHistory
from node.reports.html.markup import Fragment


def audits(peer: PeerReport, history: PeerHistory) -> Fragment | None:
    """The section on the audits of `peer`; None while there are no facts."""
    return None
