"""Assemble the page of a learner: its parts, in order, for those who may read everything and for everybody. Pure.

Invariants:

- A public page has no addresses, machines, invite, notices or samples, and gives no orders.
- The parts of the report are those of `volery report --html`.
"""

from __future__ import annotations

from node.commands.page.live_run import LiveRun
from node.commands.page.parts import learner_head, versions
from node.reports.charts.cost_curve import costs_of
from node.reports.charts.learning_curve import lead
from node.reports.charts.run_curves import plots
from node.reports.html.charts.data_table import values
from node.reports.html.charts.markup import Fragment, tag
from node.reports.html.components import section
from node.reports.html.run_page import parts as report_parts
from node.reports.model.report import SwarmReport

ORDER = (
    "head", "alarms", "learned", "figures", "notices", "peers", "invite", "plots", "versions", "samples", "plans",
    "costs", "orders", "bans", "rejected", "by-lag", "reach", "story",
)  # fmt: skip
"""The parts of the page, in their order."""

NAVIGATION = (
    ("learned", "Learning"), ("notices", "Notices"), ("peers", "Peers"), ("invite", "Invite"), ("plots", "Plots"),
    ("versions", "Versions"), ("samples", "Samples"), ("plans", "Plan"), ("costs", "Cost"), ("orders", "Control"),
    ("story", "Summary"),
)  # fmt: skip

OF_REPORT = (
    "figures", "learned", "plots", "story", "alarms", "bans", "rejected", "by-lag", "costs", "plans", "reach",
)  # fmt: skip
"""The parts that are made of the report alone. One without content is an empty place, also if it had some before."""

PUBLIC = frozenset({"head", "learned", "figures", "plots", "peers", "versions", "by-lag"})
"""Parts of a public page."""


def live_parts(live: LiveRun, report: SwarmReport | None) -> dict[str, Fragment]:
    """Return the parts that change with events."""
    found = {
        "head": learner_head.head(live, report),
        "notices": learner_head.notices(live),
        "versions": versions.part(live.view, report),
    }
    if report is None:
        found["learned"] = section("learned", "What was learned", tag("p", learner_head.READING))
    return found


def slow_parts(report: SwarmReport) -> dict[str, Fragment]:
    """Return the parts that are made of the report, but for the peers. The head has the learner's time and score."""
    made = report_parts(report, pages=(), with_numbers=False, without=("time", "peers", "score"))
    return {key: made.get(key, empty(key)) for key in OF_REPORT}


def empty(key: str) -> Fragment:
    """Return the place of a part that has no content yet."""
    return tag("div", id=key)


def numbers_of(report: SwarmReport, key: str) -> Fragment | None:
    """Return the table of a plot's values; None if there is no such plot."""
    drawn = {plot.key: plot for plot in (lead(report), *plots(report, costs_of(report)))}
    return values(drawn[key]) if key in drawn else None


def visible_keys(*, is_public: bool) -> list[str]:
    """Return the keys of the parts on a page, in order."""
    return [key for key in ORDER if not is_public or key in PUBLIC]
