"""Assemble the page of a rollout node: the swarm's progress, this machine's part in it, the owner's controls. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from node.commands.page.live_run import LiveRun
from node.commands.page.parts.learner_head import badge, notices
from node.energy.machine_load import Load
from node.reports.html.charts.data_table import values
from node.reports.html.charts.markup import Fragment, strangers, tag
from node.reports.html.components import Tile, section, tiles
from node.reports.html.own_page import own_timeline
from node.reports.html.own_page import parts as own_parts
from node.reports.model.report import OwnReport
from node.runtime import formatting as words
from node.state.status_file import NodeStatus
from node.ui.facts import rank_words

ORDER = (
    "head",
    "figures",
    "machine",
    "orders",
    "notices",
    "plots",
    "story",
    "verdicts",
    "earnings",
    "files",
    "traffic",
)
"""The parts of the page, in their order."""

NAVIGATION = (
    ("machine", "Machine"), ("orders", "Control"), ("plots", "Timeline"), ("story", "Summary"),
    ("verdicts", "Verdicts"), ("earnings", "Earnings"), ("files", "Receipts"),
)  # fmt: skip


def live_parts(live: LiveRun, load: Load, status: NodeStatus | None) -> dict[str, Fragment]:
    """Return the parts that change with events and with the machine's load."""
    return {
        "head": _head(live, status),
        "machine": section("machine", "This machine", tiles(_figures(live, load))),
        "notices": notices(live),
    }


def slow_parts(report: OwnReport) -> dict[str, Fragment]:
    """Return the parts that are made of the report."""
    return {**own_parts(report, with_numbers=False), "files": _files(report)}


def numbers_of(report: OwnReport, key: str) -> Fragment | None:
    """Return the table of a plot's values; None if there is no such plot."""
    plot = own_timeline(report)
    return values(plot) if key == plot.key else None


def _head(live: LiveRun, status: NodeStatus | None) -> Fragment:
    view = live.view
    doing = view.activity if status is None else status.doing
    newest = view.newest or view.installed
    learns = (
        f"The swarm has published version {newest}: training step {newest.split('.')[-1]}."
        if newest
        else "No version is here yet."
    )
    works = f"This machine works with version {view.installed}." if view.installed else ""
    return tag(
        "header",
        tag("h1", strangers(view.title or "Swarm"), " ", badge(live.state)),
        tag("p", f"{doing.capitalize()}. {learns} {works}".rstrip()),
        id="head",
    )


def _figures(live: LiveRun, load: Load) -> Iterator[Tile]:
    view = live.view
    yield Tile(name="rollouts a second", value=words.rate(view.rate.per_s), more=f"{view.pending:,} leased, not judged")
    yield Tile(name="tokens a second", value=words.rate(live.view.token_rate.per_s), more="admitted, over 30 s")
    if view.rank is not None:
        place, share = rank_words(view.rank)
        yield Tile(name="rank", value=place, more=share)
    for figure in load.figures:
        yield Tile(name=figure.name, value=figure.value, more=figure.more)
    yield Tile(name="sent", value=words.size(view.sent_bytes or view.bytes_up), more=_received(live))


def _received(live: LiveRun) -> str:
    view = live.view
    return f"{words.size(view.received_bytes or view.bytes_down)} received, since this start"


def _files(report: OwnReport) -> Fragment:
    said = (
        f"The learner signed {words.counted(report.receipts, 'receipt')} for this node's work. With the operator's key "
        "anybody can check them: volery receipts verify."
    )
    links = [
        tag("li", tag("a", "Receipts", href="receipts.jsonl", download="receipts.jsonl")),
        tag("li", tag("a", "Receipts with proofs", href="receipts.jsonl?proofs=1", download="receipts-proofs.jsonl")),
    ]
    return section("files", "Receipts", tag("p", said), tag("ul", links))
