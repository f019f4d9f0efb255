"""Report to people and programs: who did what, at what cost, and whether the policy learned.

`readers` turn a ledger or receipts into the frozen values of `model`. Everything else is a pure function of those
values.

- `charts`: plots as values
- `explain`: why one record, peer or version was treated as it was
- `html`: the page
- `machine_formats`: JSON and CSV
- `model`: a report as values
- `plots`: pictures
- `readers`: from a ledger or receipts to values
- `summary`: a run as one flat value, for checks and benchmarks
- `text`: a report in a terminal
"""

from node.reports.html.document import as_html, write_html
from node.reports.machine_formats import accounts_as_csv, as_csv, as_json
from node.reports.model.report import OwnReport, PeerReport, SwarmReport
from node.reports.plots.run_plot import draw_reward
from node.reports.readers.fetch_routes import routes_taken
from node.reports.readers.ledger_report import swarm_report
from node.reports.readers.receipts_report import own_report
from node.reports.summary import summary
from node.reports.text.report_text import as_terminal, as_text

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
    "routes_taken",
    "summary",
    "swarm_report",
    "write_html",
]
