"""What people read at the end: who did what, at what cost, and whether the policy learned.

Facts are read from the ledger (`swarm`) or from a node's receipts (`own`) into frozen values (`facts`); everything else
here is a pure function from those values to text, JSON, CSV, a page or a picture. Whoever prints is elsewhere.
"""

from node.reports.export import accounts_as_csv, as_csv, as_json
from node.reports.facts import OwnReport, PeerReport, SwarmReport
from node.reports.html import as_html, write_html
from node.reports.own import own_report
from node.reports.picture import draw_reward
from node.reports.roads import roads_taken
from node.reports.summary import summary
from node.reports.swarm import swarm_report
from node.reports.text import as_terminal, as_text

__all__ = [
    "OwnReport",
    "PeerReport",
    "SwarmReport",
    "accounts_as_csv",
    "as_csv",
    "as_html",
    "as_json",
    "as_terminal",
    "as_text",
    "draw_reward",
    "own_report",
    "roads_taken",
    "summary",
    "swarm_report",
    "write_html",
]
