"""Make the part of the page about one peer: its work over time, rejections with reasons, relaying and earnings. Pure.

Invariants:

- Each rule that rejected records is shown with its meaning, whether it counts against honesty, and its newest evidence
  in the learner's own words.
- Values that a peer reports about itself are labelled so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from node.reports.charts.run_curves import presence_rows, timeline
from node.reports.html.accounts_and_bans import audits
from node.reports.html.charts.data_table import table
from node.reports.html.charts.markup import Child, Fragment, strangers, tag
from node.reports.html.charts.svg import STRIP, figure
from node.reports.html.components import (
    NAME_CHARS,
    Tile,
    earned_tile,
    link_to,
    name_of,
    page_id,
    pairs,
    reputation_tile,
    scored_tiles,
    shortened,
    small_share,
    tiles,
)
from node.reports.model.costs import CostTerms, money_for
from node.reports.model.history import DETAIL_CHARS, Evidence, History, PeerHistory, Span
from node.reports.model.report import PeerReport, Role, SwarmReport
from node.reports.model.verdict_meanings import MEANINGS
from node.reports.text.report_text import SOURCES
from node.reports.text.reputation_text import BANDS, advice
from node.runtime import formatting as words
from protocol.accounting.claims import MAX_WATTS
from protocol.core.ids import PeerId, short
from protocol.work import Rule

FATES = ("issued", "in_time", "late", "expired", "returned", "recalled", "lost", "open")


def peer_pages(report: SwarmReport, *, only: str | None = None) -> list[Fragment]:
    """Return a part for each peer that has a history, in the order of the report; with `only`, for the peer of this id
    alone.
    """
    history = report.history or History()
    among = _Among(
        report=report,
        history=history,
        names={peer.peer: name_of(peer) for peer in report.peers},
        planned=report.planned_spans,
    )
    wanted = [peer for peer in report.peers if peer.peer in history.peers and only in (None, peer.peer)]
    return [_peer_page(peer, history.peers[peer.peer], among) for peer in wanted]


@dataclass(frozen=True, kw_only=True)
class _Among:
    """The data that the pages of all peers need: the run, the peers' names, and when each was planned to be active."""

    report: SwarmReport
    history: History
    names: Mapping[PeerId, str]
    planned: Mapping[PeerId, Sequence[Span]]

    def receiver(self, peer: PeerId) -> Fragment:
        """Return another peer's name, with a link to its page if there is one."""
        known = tag("span", strangers(self.names.get(peer, "")), " ", tag("code", short(peer)))
        return link_to(peer, known) if peer in self.history.peers else known


def _peer_page(peer: PeerReport, history: PeerHistory, among: _Among) -> Fragment:
    key = f"of-{peer.peer}"
    wall_s = among.report.wall_s
    rows = presence_rows(among.history.spans.get(peer.peer, ()), among.planned.get(peer.peer, ()), wall_s)
    plot = timeline(f"time-{peer.peer}", history.judged, list(rows), wall_s)
    parts: list[Child] = [
        tag("p", tag("a", "All peers", href="#peers"), class_="back"),
        tag("h2", strangers(name_of(peer)), " ", tag("small", peer.does), id=key, tabindex=-1),
        tag("p", tag("code", peer.peer), class_="id"),
        tiles(_figures(peer)),
        figure(plot, wide=STRIP),
    ]
    if peer.role is Role.ROLLOUT:
        judged = verdicts(peer.verdicts, history.evidence, among.report.started_ms) if peer.generates else []
        parts += [judged, audits(peer), tag("h3", "Leases"), tiles(_leases(peer), kind="small")]
        parts += _relayed(history, among) if peer.generates else []
    about = (
        _part("Earnings", _earnings(peer, among.report.terms)),
        _part("Machine, as reported by the node", _machine(peer)),
        _part(
            "Presence" if peer.reputation is None else "Presence and reputation",
            _standing(peer, among.history.presences.get(peer.peer, 0)),
        ),
    )
    parts.append(tag("div", about, class_="about"))
    return tag("section", parts, class_="peer", id=page_id(peer.peer), aria_labelledby=key)


def verdicts(
    counts: Mapping[Rule, int], evidence: Mapping[Rule, tuple[Evidence, ...]], started_ms: int
) -> list[Fragment]:
    """Return what was rejected, by rule: its meaning, and the newest records that it rejected."""
    judged, rejected = sum(counts.values()), [rule for rule in counts if rule is not Rule.ADMITTED]
    if not rejected:
        said = "No record was judged yet."
        if judged:
            said = (
                "The one judged record was admitted."
                if judged == 1
                else f"All {judged:,} judged records were admitted."
            )
        return [tag("h3", "Verdicts"), tag("p", said)]
    rows = [
        (
            tag("code", rule.value),
            words.count(counts[rule]),
            small_share(counts[rule] / judged),
            f"not counted because {MEANINGS[rule].words}" if rule is not Rule.ADMITTED else MEANINGS[rule].words,
            "yes" if MEANINGS[rule].blames else "no",
        )
        for rule in Rule
        if rule in counts
    ]
    headings = ["rule", "records", "share", "meaning", "counts against honesty"]
    return [
        tag("h3", "Verdicts"),
        table("Judged records by the rule that decided", headings, rows, kind="verdicts"),
        *_evidence(evidence, started_ms),
    ]


def _evidence(evidence: Mapping[Rule, tuple[Evidence, ...]], started_ms: int) -> Iterator[Fragment]:
    """Yield the newest records that each rule rejected."""
    rows = [
        (
            tag("code", rule.value),
            words.moment(started_ms + round(1000 * one.at_s)),
            tag("code", f"{short(one.lease)}/{one.index}"),
            words.NOTHING if one.version is None else str(one.version),
            words.NOTHING if one.lag is None else f"{one.lag} {'step' if one.lag == 1 else 'steps'}",
            strangers(shortened(one.detail, DETAIL_CHARS)),
        )
        for rule in Rule
        for one in evidence.get(rule, ())
    ]
    if rows:
        headings = ["rule", "when", "lease/record", "behaviour version", "lag", "what was found"]
        yield table("The newest rejected records of each rule", headings, rows, kind="evidence")


def _figures(peer: PeerReport) -> Iterator[Tile]:
    if peer.role is Role.LEARNER:
        yield Tile(name="sent", value=words.size(peer.bytes_up), more="of chunks")
        yield Tile(name="cost", value=words.money(peer.cost, peer.price.currency))
        yield Tile(name="present", value=words.duration(peer.active_s + peer.standby_s))
        return
    yield from scored_tiles(peer)
    if peer.generates:
        yield Tile(name="rollouts admitted", value=words.count(peer.admitted), more=f"{peer.rejected:,} rejected")
        yield Tile(name="share of batches", value=words.share(peer.share))
        yield Tile(name="tokens admitted", value=words.count(peer.tokens))
    yield earned_tile(peer)
    if peer.generates:
        yield Tile(name="chunks relayed, credited", value=words.size(peer.bytes_relayed or 0))
    yield from reputation_tile(peer)


def _leases(peer: PeerReport) -> Iterator[Tile]:
    for fate in FATES:
        yield Tile(name=fate.replace("_", " "), value=words.count(getattr(peer.leases, fate)))


def _relayed(history: PeerHistory, among: _Among) -> Iterator[Fragment]:
    """Yield who signed to have received chunks from this peer."""
    yield tag("h3", "Relaying")
    if not history.given:
        yield tag("p", "No peer with admitted work has signed to have received chunks from it.")
        return
    rows = [
        (among.receiver(one.receiver), words.size(one.num_bytes), words.count(one.versions)) for one in history.given
    ]
    yield table("Relayed chunks that were credited, by receiver", ["receiver", "bytes", "versions"], rows)


def _part(title: str, rows: Iterator[tuple[str, Child]]) -> Fragment:
    return tag("div", tag("h3", title), pairs(rows))


def energy(peer: PeerReport, terms: CostTerms) -> Iterator[tuple[str, Child]]:
    """Yield joules as the peer reports them, what they cost, and the implausible part."""
    if peer.joules is not None:
        parts = ", ".join(f"{words.kwh(joules)} {SOURCES[source]}" for source, joules in peer.energy.items())
        yield "energy, as reported", f"{words.kwh(peer.joules)} kWh: {parts}"
        if (paid := money_for(peer.joules, terms.per_kwh)) is not None:
            yield "electricity", words.money(paid, terms.currency)
    if peer.joules_disbelieved:
        kilowatts = f"{MAX_WATTS / 1000:g} kW"
        yield "energy, not included", f"{words.kwh(peer.joules_disbelieved)} kWh reported: more than {kilowatts}"


def _earnings(peer: PeerReport, terms: CostTerms) -> Iterator[tuple[str, Child]]:
    currency = peer.price.currency
    yield "price asked", f"{words.money(peer.price_per_hour, currency)} an hour"
    yield "time active", f"{words.duration(peer.active_s)} ({words.hours(peer.active_s)} h)"
    yield "time on standby", words.duration(peer.standby_s)
    yield "earned", words.money(peer.cost, currency)
    if peer.role is Role.ROLLOUT:
        yield "per 1000 admitted tokens", f"{words.cents(peer.cents_per_1000_tokens, 'cents')} ({currency})"
        if (share := peer.against(terms.reference, terms.currency)) is not None:
            yield "against the reference", f"{words.share(share)} of its cost per token"
    yield from energy(peer, terms)
    yield "chunks sent, as reported", words.size(peer.bytes_up)
    yield "chunks received, as reported", words.size(peer.bytes_down)


def _machine(peer: PeerReport) -> Iterator[tuple[str, Child]]:
    yield "engine", strangers(words.plain_name(peer.engine, NAME_CHARS) or words.NOTHING)
    yield "machine", strangers(shortened(words.plain_name(peer.machine, 200), 200) or words.NOTHING)
    if peer.role is Role.ROLLOUT:
        yield f"its engine {peer.worked} for", words.duration(peer.engine_s)
    if peer.generates:
        rate = words.rate(peer.admitted_per_s)
        rollouts = f"{rate} {'rollout' if rate == '1' else 'rollouts'} per second active"
        yield "admitted", words.NOTHING if peer.admitted_per_s is None else rollouts


def _standing(peer: PeerReport, presences: int) -> Iterator[tuple[str, Child]]:
    yield "first seen", words.moment(peer.first_seen_ms)
    yield "last seen", words.moment(peer.last_seen_ms)
    yield "joined", words.times(presences)
    if peer.reputation is not None:
        for share in ("availability", "timeliness", "honesty", "soundness", "service"):
            yield share, f"{getattr(peer.reputation, share):.2f} of 1"
        yield "reputation", f"{peer.reputation.score:.2f} of 1, {BANDS[peer.reputation.band]}"
        if sentences := list(advice(peer.reputation)):
            yield "what would raise it", " ".join(sentences)
