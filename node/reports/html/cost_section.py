"""What the run cost by version, start and day, and what of that is electricity: tables on the page.

Pure. What always holds: cells are those of a terminal's report; the line below adds up the whole run.
"""

from __future__ import annotations

from node.reports.html.charts.data_table import scrolling
from node.reports.html.charts.markup import Fragment, tag
from node.reports.html.components import section
from node.reports.model.costs import Account
from node.reports.model.report import SwarmReport
from node.reports.text.cost_table import KINDS, account_columns, accounts
from node.reports.text.peer_columns import Column

ACCOUNTS_SHOWN = 60
"""Of each kind, the latest: two months of days. The JSON and CSV forms have all."""


def cost_section(report: SwarmReport) -> Fragment | None:
    """The tables; nothing before anybody came."""
    if not report.peers:
        return None
    said = (
        "What peers and the learner cost, spread over the time that they were here; tokens count when their records "
        "came. Each table adds up to the whole run. A run is a start of the learner; a version lasts from its "
        "publication to that of the next one; days are those in UTC on which anything happened."
    )
    tables = [_table(report, kind) for kind in KINDS if accounts(report, kind)]
    return section("costs", "Cost by start, day and version", tag("p", said), tables)


def _table(report: SwarmReport, kind: str) -> Fragment:
    rows, columns = accounts(report, kind), account_columns(report)
    shown = rows[-ACCOUNTS_SHOWN:]
    latest = f", the last {len(shown)} of {len(rows):,}" if len(shown) < len(rows) else ""
    caption = f"Cost by {kind}{latest}, the newest first"
    foot = [tag("td", column.total(report)) for column in columns]
    whole = tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", [tag("th", name, scope="col") for name in (kind, *(c.title for c in columns))])),
        tag("tbody", [_row(row, columns) for row in reversed(shown)]),
        tag("tfoot", tag("tr", tag("th", "together", scope="row"), foot)),
        class_="accounts",
    )
    return scrolling(caption, whole)


def _row(row: Account, columns: tuple[Column[Account], ...]) -> Fragment:
    return tag("tr", tag("th", row.name, scope="row"), [tag("td", column.cell(row)) for column in columns])
