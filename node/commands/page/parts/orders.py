"""Make the part of a page with which its owner gives orders. Pure.

A form sends `{"order": ORDER, FIELD: value, ...}` with the token that the page's address ended with. Without a token,
or without a script, the page says how to get one, and the forms stay closed.
"""

from __future__ import annotations

from node.config.swarm_config import SwarmConfig
from node.reports.html.charts.markup import Child, Fragment, tag
from node.reports.html.components import section
from node.reports.model.report import SwarmReport
from node.state.status_file import NodeStatus
from node.ui.live_view import ViewState

LOCKED = (
    "To give orders here, open the page with the address that the program printed at its start: it ends with a token."
)


def learner_orders(view: ViewState, config: SwarmConfig | None, report: SwarmReport) -> Fragment:
    """Return the operator's controls."""
    forms = [
        form("ban", "Ban a peer", _text("peer", "Peer (its id)"), _text("reason", "Reason")),
        form("pardon", "Pardon a peer", _text("peer", "Peer (its id)")),
    ]
    return _section("Control", forms)


def node_orders(status: NodeStatus | None) -> Fragment:
    """Return the owner's controls."""
    if status is None:
        return _section("Control", [tag("p", "The node does not run.")])
    is_paused = "paused" in status.doing
    forms = [
        form("resume" if is_paused else "pause", "Resume" if is_paused else "Pause"),
        form("drain", "Drain: deliver what is leased, then end"),
    ]
    limits = [tag("li", f"{key}: {value}") for key, value in status.limits.items()]
    return _section("Control", [*forms, tag("p", "Limits in force:"), tag("ul", limits)] if limits else forms)


def form(order: str, name: str, *fields: Child) -> Fragment:
    """Return a form that gives `order`."""
    return tag("form", fields, tag("button", name, type="submit"), data_order=order, class_="order")


def _text(name: str, label: str) -> Fragment:
    return tag("label", f"{label} ", tag("input", name_=name, autocomplete="off", size=18))


def _section(title: str, content: list[Fragment]) -> Fragment:
    locked = tag("p", LOCKED, class_="locked")
    return section("orders", title, locked, tag("div", content, class_="orders"))
