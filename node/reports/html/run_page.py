"""Make the part of the page about the whole run. Pure.

Invariants:

- It says in words what the plots show.
- Sections without content are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from learner.ledger.reach import WAYS
from node.config.swarm_config import regime
from node.reports.charts.cost_curve import Costs, costs_of
from node.reports.charts.learning_curve import lead
from node.reports.charts.run_curves import plots
from node.reports.html.accounts_and_bans import ban_section, ban_tiles, cost_section
from node.reports.html.charts.data_table import table
from node.reports.html.charts.markup import Child, Fragment, strangers, tag
from node.reports.html.charts.svg import WIDE, figure
from node.reports.html.components import REASON_CHARS, Tile, known_as, link_to, pairs, section, small_share, tiles
from node.reports.html.peer_table import peer_table
from node.reports.model.history import PEERS_TOLD
from node.reports.model.objective_figures import spells
from node.reports.model.report import SwarmReport
from node.reports.model.time_words import time_rows
from node.reports.model.verdict_meanings import MEANINGS
from node.reports.text.cost_table import latest
from node.reports.text.peer_columns import reach_columns
from node.reports.text.report_text import REACH_SAID, alarm_rows, lag_rows, lag_title, none_rejected, story
from node.runtime import formatting as words
from protocol.accounting.claims import MICROS
from protocol.core.ids import PeerId, short
from protocol.work import Rule

ALARMS_LISTED = 50
"""Alarms that are listed, the newest; the JSON form has all."""

PLANS_LISTED = 50
"""Plans that are listed, the newest; the JSON form has all."""

NAMES_LISTED = 8
"""Names of the peers that a plan wanted to be active; a larger plan is shown by their number."""

REACH_LISTED = 2000
"""Peers in the table of connections: as many as the table of peers has rows."""

PAIRS_LISTED = 200
"""Pairs that are listed, the newest; the JSON form has all."""

REASONS_LISTED = 12
"""Reasons of one plan that are listed; the JSON form has all."""


def overview(report: SwarmReport, pages: Collection[PeerId]) -> Fragment:
    """Return everything about the run. `pages`: the peers with a page of their own."""
    return tag("div", parts(report, pages).values(), id="overview")


def parts(
    report: SwarmReport, pages: Collection[PeerId], *, with_numbers: bool = True, without: Collection[str] = ()
) -> dict[str, Fragment]:
    """Return the parts of the overview by the ids of their elements, in order, without those that have no content.

    with_numbers: whether each plot holds its numbers, or a link to them (`figure`). without: parts that are not made;
    "score" is the tile with the held-out score.
    """
    costs = costs_of(report)
    makers: Mapping[str, Callable[[], Fragment | None]] = {
        "figures": lambda: tag("div", tiles(_figures(report, costs, with_score="score" not in without)), id="figures"),
        "learned": lambda: _learned(report, with_numbers=with_numbers),
        "plots": lambda: _plots(report, costs, with_numbers=with_numbers),
        "story": lambda: section("story", "Summary", pairs(story(report))),
        "time": lambda: _time(report),
        "alarms": lambda: _alarms(report),
        "peers": lambda: _peers(report, pages),
        "bans": lambda: ban_section(report, pages),
        "rejected": lambda: _rejected(report),
        "by-lag": lambda: _by_lag(report),
        "costs": lambda: cost_section(report),
        "plans": lambda: _plans(report, costs, pages),
        "reach": lambda: _reach(report, pages),
    }
    made = {key: make() for key, make in makers.items() if key not in without}
    return {key: part for key, part in made.items() if part is not None}


def _figures(report: SwarmReport, costs: Costs, *, with_score: bool) -> Iterator[Tile]:
    scores = report.surviving_evaluations
    if scores and with_score:
        yield Tile(
            name="held-out score, greedy",
            value=f"{scores[-1].greedy:.3f}",
            more=f"{scores[0].greedy:.3f} at the start",
        )
    versions = words.counted(len(report.versions), "version")
    yield Tile(name="training steps", value=words.count(len(report.steps)), more=versions)
    yield Tile(name="rollouts admitted", value=words.count(report.admitted), more=f"{report.rejected:,} rejected")
    bubble = "" if report.bubble is None else f"; it waits for {words.share(report.bubble)} of the steps' time (bubble)"
    yield Tile(name="learner training", value=words.share(report.utilisation), more=f"of its time{bubble}")
    if report.verifying_share is not None:
        yield Tile(name="verification", value=words.share(report.verifying_share), more="of the run, on an engine")
    yield from ban_tiles(report)
    planned = (
        "no plan" if costs.planned_total is None else f"{words.money(costs.planned_total, costs.currency)} planned"
    )
    yield Tile(name="cost of rollout peers", value=words.money(costs.total, costs.currency), more=planned)
    found = spells(report.alarms)
    standing = sum(spell.ended is None for spell in found)
    yield Tile(name="alarms", value=words.count(len(found)), more=f"{standing or 'none'} active")


def _plots(report: SwarmReport, costs: Costs, *, with_numbers: bool) -> Fragment:
    drawn = [figure(plot, with_numbers=with_numbers) for plot in plots(report, costs)]
    return section("plots", "What happened", tag("div", drawn, class_="grid"))


def _learned(report: SwarmReport, *, with_numbers: bool = True) -> Fragment:
    plot = lead(report)
    if plot.is_empty:
        return section("learned", "What was learned", tag("p", "No training step and no evaluation has ended yet."))
    return section("learned", "What was learned", figure(plot, wide=WIDE, with_numbers=with_numbers))


def _time(report: SwarmReport) -> Fragment | None:
    """Return how the learner spent its time: rows that add up to how long it ran."""
    time = report.learner_time
    if not time.wall_s:
        return None
    each = [(name, words.seconds(seconds), words.share(share)) for name, seconds, share in time_rows(time)]
    total = ("total", words.seconds(time.wall_s), words.share(1.0))
    return section("time", "The learner's time", table("By kind", ["kind", "time", "share"], [*each, total]))


def _alarms(report: SwarmReport) -> Fragment | None:
    found = alarm_rows(report)
    if not found:
        return None
    rows = [
        (name, when, "yes" if spell.ended is None else "no", spell.said)
        for spell, name, when in reversed(found[-ALARMS_LISTED:])
    ]
    caption = f"{latest('Alarms', len(rows), len(found))}, the newest first"
    headings = ["alarm", "when", "active", "what was measured, and what to do"]
    return section("alarms", "Alarms", table(caption, headings, rows, kind="alarms"))


def _peers(report: SwarmReport, pages: Collection[PeerId]) -> Fragment:
    if not report.peers:
        return section("peers", "Peers", tag("p", "No peer has joined yet."))
    without = len(report.peers) - len(pages)
    said = "Each name leads to a page about that peer. The table is wider than most screens: it scrolls sideways."
    if without > 0:
        said = (
            f"Names that are links lead to a page about that peer. {PEERS_TOLD} peers have one, among them those with "
            f"most blamed records; {without:,} have none."
        )
    return section("peers", "Peers", tag("p", said, id="peers-said"), peer_table(report, pages))


def _rejected(report: SwarmReport) -> Fragment:
    judged = report.admitted + report.rejected
    rows = [
        (
            tag("code", rule.value),
            words.count(number),
            small_share(number / judged),
            MEANINGS[rule].words,
            "yes" if MEANINGS[rule].blames else "no",
        )
        for rule, number in report.verdicts.items()
        if rule is not Rule.ADMITTED
    ]
    if not rows:
        return section("rejected", "Rejected records", tag("p", none_rejected(judged)))
    headings = ["rule", "records", "share of judged", "it was not counted because ...", "counts against honesty"]
    return section("rejected", "Rejected records", table("Rejected records by rule", headings, rows, kind="verdicts"))


def _by_lag(report: SwarmReport) -> Fragment | None:
    """Return the trainer's recent results by the tokens' lag."""
    rows = lag_rows(report)
    if not rows:
        return None
    headings = ["lag (steps)", "tokens", "mean ratio", "KL (nats)", "clipped", "effective sample", "mean reward"]
    return section("by-lag", "By lag", table(lag_title(report), headings, rows))


def _plans(report: SwarmReport, costs: Costs, pages: Collection[PeerId]) -> Fragment | None:
    if not report.plans:
        return None
    names = {peer.peer: words.plain_name(peer.name) for peer in report.peers}
    rows = [
        (
            words.duration(max(0.0, plan.at_s)),
            _active(names, plan.active, pages),
            f"{words.money(plan.micros_per_hour / MICROS, costs.currency)} an hour",
            "every step" if plan.kappa == 1 else f"every {plan.kappa} steps",
            _reasons(plan.reasons),
        )
        for plan in reversed(report.plans[-PLANS_LISTED:])
    ]
    caption = f"{latest('Plans', len(rows), len(report.plans))}, the newest first"
    headings = ["time since the start", "active peers", "price", "versions published", "reasons"]
    return section("plans", "Plans", table(caption, headings, rows, kind="plans"))


def _reach(report: SwarmReport, pages: Collection[PeerId]) -> Fragment | None:
    """Return how nodes connected, and the newest pairs of nodes."""
    told = [(peer, peer.reach) for peer in report.peers[:REACH_LISTED] if peer.reach is not None]
    if not told:
        return None
    columns = reach_columns(report)
    rows: list[Sequence[Child]] = [
        (
            link_to(peer.peer, known_as(peer)) if peer.peer in pages else known_as(peer),
            *(column.cell(peer) for column in columns),
            words.duration(max(0.0, reach.since_s)),
            strangers(words.plain_name(reach.why, REASON_CHARS)),
        )
        for peer, reach in told
    ]
    headings = ["peer", *(column.title for column in columns), "since", "reason"]
    peers = table("How peers are reached, and how they connected", headings, rows, kind="reach")
    said = [tag("p", report.reach.text), tag("p", REACH_SAID)]
    return section("reach", "Connections between nodes", said, peers, _pairs(report))


def _pairs(report: SwarmReport) -> Fragment | None:
    """Return how nodes connected, a row for each pair."""
    names = {peer.peer: known_as(peer) for peer in report.peers}
    rows = [
        (
            names.get(pair.one, short(pair.one)),
            names.get(pair.other, short(pair.other)),
            WAYS[pair.way],
            words.NOTHING if pair.by is None else names.get(pair.by, short(pair.by)),
            words.duration(max(0.0, (pair.since_ms - report.started_ms) / 1000)),
            words.size(pair.bytes_carried),
        )
        for pair in report.pairs[-PAIRS_LISTED:]
    ]
    if not rows:
        return None
    headings = ["node", "node", "connected", "dialled by", "time since the start", "bytes over circuits"]
    return table(latest("Pairs of nodes", len(rows), len(report.pairs)), headings, rows, kind="met")


def _reasons(reasons: Sequence[str]) -> list[Fragment]:
    said = [tag("p", strangers(words.plain_name(one, REASON_CHARS))) for one in reasons[:REASONS_LISTED]]
    more = len(reasons) - REASONS_LISTED
    return [*said, tag("p", f"and {more:,} more")] if more > 0 else said


def _active(names: Mapping[PeerId, str], active: Sequence[PeerId], pages: Collection[PeerId]) -> list[Child]:
    """Return the active peers, by name if they are few."""
    if not active:
        return ["none"]
    if len(active) > NAMES_LISTED:
        return [f"{len(active):,} peers"]
    found: list[Child] = []
    for peer in active:
        name = strangers(names.get(peer) or short(peer))
        found += [", " if found else None, link_to(peer, name) if peer in pages else name]
    return found


def heading(report: SwarmReport) -> tuple[str, str]:
    """Return the page's title, and the line below it."""
    window = "" if report.staleness is None else f"; {regime(report.staleness)}"
    dates = f"{words.moment(report.started_ms)} to {words.moment(report.ended_ms)}"
    return f"Swarm {short(report.swarm)}", f"{dates}, {words.duration(report.wall_s)}{window}."
