"""Make the page of a volunteer: what its own node did, from the receipts that it keeps. Pure.

Invariant: values that only the learner knows are left out, and the page says who has them.
"""

from __future__ import annotations

from collections.abc import Iterator

from node.reports.charts.plot import Look, Plot, Row
from node.reports.charts.run_curves import timeline
from node.reports.html.charts.data_table import table
from node.reports.html.charts.markup import Child, Fragment, strangers, tag
from node.reports.html.charts.svg import STRIP, figure
from node.reports.html.components import (
    Tile,
    earned_tile,
    name_of,
    pairs,
    reputation_tile,
    scored_tiles,
    section,
    shortened,
    tiles,
)
from node.reports.html.peer_page import energy, verdicts
from node.reports.model.history import DETAIL_CHARS, PeerHistory
from node.reports.model.report import OwnReport
from node.reports.text.report_text import own_story
from node.runtime import formatting as words
from protocol.core.ids import short


def own_page(report: OwnReport) -> Fragment:
    """Return everything about the node."""
    return tag("div", parts(report).values(), id="overview")


def parts(report: OwnReport, *, with_numbers: bool = True) -> dict[str, Fragment]:
    """Return the parts of the page by the ids of their elements, in order, without those that have no content.

    with_numbers: whether each plot holds its numbers, or a link to them (`figure`).
    """
    plot = own_timeline(report)
    found = {
        "figures": tag("div", tiles(_figures(report)), id="figures"),
        "plots": section("plots", "What happened", figure(plot, wide=STRIP, with_numbers=with_numbers)),
        "story": section("story", "Summary", pairs((name, value) for name, value in own_story(report))),
        "verdicts": _verdicts(report),
        "earnings": section("earnings", "Earnings and machine", pairs(_earnings(report))),
        "traffic": _traffic(report),
    }
    return {key: part for key, part in found.items() if part is not None}


def own_timeline(report: OwnReport) -> Plot:
    """Return the plot of when the node was in the swarm, and what it delivered."""
    peer, history = report.peer, report.history or PeerHistory()
    wall_s = (peer.last_seen_ms - peer.first_seen_ms) / 1000
    return timeline("timeline", history.judged, [Row(name="here", spans=report.spans, look=Look.BLUE)], wall_s)


def heading(report: OwnReport) -> tuple[str, str]:
    """Return the page's title, and the line below it."""
    peer = report.peer
    if not peer.last_seen_ms:
        return f"Work of {name_of(peer)}", "This node has not been in a swarm yet."
    return f"Work of {name_of(peer)}", f"{words.moment(peer.first_seen_ms)} to {words.moment(peer.last_seen_ms)}."


def _figures(report: OwnReport) -> Iterator[Tile]:
    peer = report.peer
    if peer.generates:
        yield Tile(name="rollouts admitted", value=words.count(peer.admitted), more=f"{peer.rejected:,} rejected")
        yield Tile(name="tokens admitted", value=words.count(peer.tokens))
    yield from scored_tiles(peer)
    yield earned_tile(peer)
    yield Tile(name="receipts", value=words.count(report.receipts), more="signed by the learner")
    yield from reputation_tile(peer)
    if report.sent_bytes is not None and report.received_bytes is not None:
        received = f"{words.size(report.received_bytes)} received"
        yield Tile(name="data sent", value=words.size(report.sent_bytes), more=received)
    yield Tile(name="chunks sent", value=words.size(peer.bytes_up), more=f"{words.size(peer.bytes_down)} received")


def has_verdicts(report: OwnReport) -> bool:
    """Return whether there are verdicts to show; a teacher without rejections has none."""
    return report.peer.generates or bool(report.refused)


def _verdicts(report: OwnReport) -> Fragment | None:
    """Return the verdicts on rollouts, and the newest rejections of anything that the node delivered."""
    peer = report.peer
    rollouts = verdicts(peer.verdicts, {}, peer.first_seen_ms)[1:] if peer.generates else []
    return section("verdicts", "Verdicts", rollouts, _refused(report)) if has_verdicts(report) else None


def _refused(report: OwnReport) -> Fragment | None:
    if not report.refused:
        return None
    rows = [
        (
            tag("code", one.rule.value),
            words.moment(one.at_ms),
            tag("code", f"{short(one.lease)}/{one.index}"),
            strangers(shortened(one.detail, DETAIL_CHARS)),
        )
        for one in report.refused
    ]
    caption = "The newest rejected records, in the learner's words"
    return table(caption, ["rule", "when", "lease/record", "what was found"], rows, kind="evidence")


def _earnings(report: OwnReport) -> Iterator[tuple[str, Child]]:
    peer, currency = report.peer, report.peer.price.currency
    yield "price asked", f"{words.money(peer.price_per_hour, currency)} an hour"
    yield "time in the swarm", f"{words.duration(peer.active_s)} ({words.hours(peer.active_s)} h)"
    yield "earned", words.money(peer.cost, currency)
    yield "per 1000 admitted tokens", f"{words.cents(peer.cents_per_1000_tokens, 'cents')} ({currency})"
    yield from energy(peer, report.terms)
    yield "engine", strangers(words.plain_name(peer.engine, 48) or words.NOTHING)
    yield "machine", strangers(words.plain_name(peer.machine, 200) or words.NOTHING)


def _traffic(report: OwnReport) -> Fragment | None:
    if not report.traffic:
        return None
    rows = [(tag("code", one.peer), words.size(one.bytes_up), words.size(one.bytes_down)) for one in report.traffic]
    caption = "Chunks exchanged, as this node counted them"
    return section("traffic", "Chunks", table(caption, ["peer", "sent to it", "received from it"], rows))
