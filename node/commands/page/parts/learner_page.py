"""Assemble the page of a learner: its parts, in order, for those who may read everything and for everybody. Pure.

Invariants:

- A public page has no addresses, machines, invite, notices or samples, and gives no orders.
- The parts of the report are those of `volery report --html`.
"""

from __future__ import annotations

from collections.abc import Mapping

from node.commands.page.live_run import LiveRun
from node.commands.page.parts import learner_head, peers, versions
from node.reports.charts.cost_curve import costs_of
from node.reports.charts.learning_curve import lead
from node.reports.charts.run_curves import plots
from node.reports.html.charts.data_table import numbers
from node.reports.html.charts.markup import Fragment, tag
from node.reports.html.run_page import parts as report_parts
from node.reports.model.report import SwarmReport

ORDER = (
    "head", "alarms", "notices", "learned", "figures", "peers", "plots", "versions", "samples", "plans", "costs",
    "bans", "rejected", "by-lag", "reach", "story", "invite", "orders",
)  # fmt: skip
"""The parts of the page, in their order."""

NAVIGATION = (
    ("learned", "Learning"), ("peers", "Peers"), ("plots", "Plots"), ("versions", "Versions"), ("samples", "Samples"),
    ("plans", "Plan"), ("costs", "Cost"), ("invite", "Invite"), ("orders", "Control"),
)  # fmt: skip

LIVE = frozenset({"head", "notices", "versions"})
"""Parts that change with events; the others change when the report is read again."""

PUBLIC = frozenset({"head", "learned", "figures", "plots", "peers", "versions", "by-lag"})
"""Parts of a public page."""


def live_parts(live: LiveRun, report: SwarmReport | None) -> dict[str, Fragment]:
    """Return the parts that change with events."""
    return {
        "head": learner_head.head(live, report),
        "notices": learner_head.notices(live),
        "versions": versions.part(live.view, report),
    }


def slow_parts(report: SwarmReport, *, is_public: bool) -> dict[str, Fragment]:
    """Return the parts that are made of the report."""
    found = report_parts(report, pages=(), with_numbers=False)
    del found["time"]  # the head has it
    found["peers"] = peers.part(report, is_public=is_public)
    return found


def empty(key: str) -> Fragment:
    """Return the place of a part that has no content yet."""
    return tag("div", id=key)


def numbers_of(report: SwarmReport, key: str) -> Fragment | None:
    """Return the table of a plot's values; None if there is no such plot."""
    drawn = {plot.key: plot for plot in (lead(report), *plots(report, costs_of(report)))}
    return numbers(drawn[key]) if key in drawn else None


def visible_keys(*, is_public: bool) -> list[str]:
    """Return the keys of the parts on a page, in order."""
    return [key for key in ORDER if not is_public or key in PUBLIC]


def navigation(parts: Mapping[str, str], *, is_public: bool) -> list[tuple[str, str]]:
    """Return the links at the top: keys and names of parts that have content."""
    return [(key, name) for key, name in NAVIGATION if parts.get(key) and (not is_public or key in PUBLIC)]
