"""Make the table of peers of a live page: a window of rows, sorted and searched here, so that a thousand stay light.

Pure.

Invariants:

- The rows, their order and their number depend on the report and the question alone.
- A page holds at most MOST_ROWS rows at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from node.reports.html.charts.data_table import scrolling
from node.reports.html.charts.markup import Fragment, strangers, tag
from node.reports.html.components import name_of, section
from node.reports.model.report import HERE_MS, PeerReport, Role, SwarmReport
from node.reports.text.columns import Column
from node.reports.text.peer_columns import sections
from node.runtime import formatting as words
from protocol.accounting.reputation import Band
from protocol.core.ids import short

FIRST_ROWS = 25
"""Rows of a page before its script asks for more."""

MOST_ROWS = 100
"""Most rows in one answer."""

MAX_FIND_CHARS = 100

MEANINGS = {
    "share": "Share of batches: fraction of the trained rollouts that the peer generated.",
    "cents_per_1000_tokens": "Cents per 1k tokens: what the peer's time cost for each 1,000 of its admitted tokens.",
    "reputation.score": "Score: the peer's reputation, from 0 to 1; the band is the same as a word.",
}
"""What columns mean, if their headings do not say it, by their keys."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """Which rows are asked for: from place `first`, `count` of them, sorted by the column `by`, holding `find`."""

    first: int = 0
    count: int = FIRST_ROWS
    by: str = ""
    is_descending: bool = True
    find: str = ""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The answer: how many peers match, and the rows as markup."""

    total: int
    html: list[str]


def columns(report: SwarmReport, *, is_public: bool) -> list[Column[PeerReport]]:
    """Return the columns of the table; a public page has no machines' engines, reach or traffic."""
    found = [column for part in sections(report) for column in part.columns]
    return [column for column in found if not is_public or column.key in PUBLIC]


PUBLIC = frozenset({"admitted", "rejected", "tokens", "share", "hours_active", "reputation.score", "reputation.band"})
"""Keys of the columns that a public page shows."""


def rows(report: SwarmReport, question: Question, *, is_public: bool) -> Rows:
    """Return the rows that are asked for."""
    shown = columns(report, is_public=is_public)
    peers = [peer for peer in report.peers if peer.role is Role.ROLLOUT]
    if words_sought := question.find[:MAX_FIND_CHARS].strip().lower():
        peers = [peer for peer in peers if words_sought in _searched(peer, is_public=is_public)]
    by = next((column for column in shown if column.key == question.by), None)
    if question.by == "peer":
        peers.sort(key=lambda peer: (name_of(peer).lower(), peer.peer), reverse=question.is_descending)
    elif by is not None:
        known = [(number, peer) for peer in peers if (number := by.number(peer)) is not None]
        known.sort(key=lambda one: (-one[0] if question.is_descending else one[0], one[1].peer))
        unknown = [peer for peer in peers if by.number(peer) is None]
        peers = [peer for _, peer in known] + unknown
    window = peers[max(0, question.first) :][: max(0, min(question.count, MOST_ROWS))]
    return Rows(total=len(peers), html=[_row(peer, report, shown, is_public=is_public).text for peer in window])


def part(report: SwarmReport | None, *, is_public: bool) -> Fragment:
    """Return the section with the first rows; the script loads others as they come into view."""
    if report is None or not report.rollout_peers:
        return section("peers", "Peers", tag("p", "No peer has joined yet."))
    shown = columns(report, is_public=is_public)
    found = rows(report, Question(), is_public=is_public)
    table = tag(
        "table",
        tag("caption", f"{words.counted(found.total, 'peer')}, by rollouts admitted"),
        tag("thead", _headings(shown)),
        tag("tbody", Fragment("".join(found.html))),
        class_="peers",
        id="live-peers",
        data_total=found.total,
    )
    more = ""
    if found.total > len(found.html):
        more = f"The first {len(found.html)} of {found.total:,} peers. A browser with scripts shows them all."
    keys = {column.key for column in shown}
    meanings = " ".join(said for key, said in MEANINGS.items() if key in keys)
    return section(
        "peers",
        "Peers",
        tag("p", more, class_="without-script") if more else None,
        _window(table),
        tag("p", meanings, class_="soft below"),
    )


def _window(table: Fragment) -> Fragment:
    return tag("div", scrolling("Table of peers", table), class_="window")


def _headings(shown: Sequence[Column[PeerReport]]) -> Fragment:
    cells = [tag("th", column.title, scope="col", data_key=column.key) for column in shown]
    return tag("tr", tag("th", "peer", scope="col", data_key="peer"), tag("th", "state", scope="col"), cells)


def _row(peer: PeerReport, report: SwarmReport, shown: Sequence[Column[PeerReport]], *, is_public: bool) -> Fragment:
    known = tag("span", strangers(name_of(peer)), " ", tag("code", short(peer.peer)))
    name = known if is_public else tag("a", known, href=f"peer?id={quote(peer.peer, safe='')}")
    cells = [tag("td", column.cell(peer)) for column in shown]
    return tag("tr", tag("th", name, scope="row"), tag("td", state_of(peer, report)), cells, data_peer=peer.peer)


def state_of(peer: PeerReport, report: SwarmReport) -> str:
    """Return what a peer is now, in a word or two."""
    if peer.audits is not None and peer.audits.banned:
        return "banned"
    if peer.last_seen_ms < report.ended_ms - HERE_MS:
        return "gone"
    return "quarantined" if peer.reputation and peer.reputation.band is Band.QUARANTINED else "here"


def _searched(peer: PeerReport, *, is_public: bool) -> str:
    told = [name_of(peer), short(peer.peer)]
    return " ".join(told if is_public else [*told, peer.peer, peer.engine, peer.machine]).lower()
