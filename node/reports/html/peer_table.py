"""Make the table of peers: a row each, with the columns of the report in a terminal, sortable by any of them. Pure.

Invariants:

- A cell that shows a number carries its exact value, so that sorting is by value and not by text.
- At most PEERS_LISTED rows, and those of peers with a page of their own, are there; one below adds up the rest.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from node.reports.html.charts.data_table import scrolling
from node.reports.html.charts.markup import Fragment, tag
from node.reports.html.components import known_as, link_to, name_of
from node.reports.model.report import PeerReport, SwarmReport
from node.reports.text.columns import Column, Section
from node.reports.text.peer_columns import sections
from node.runtime import formatting as words
from protocol.core.ids import PeerId, short

PEERS_LISTED = 2000
"""Rows: 1.6 MB. With the peers' own pages, it opens in 1.3 s and sorts in 1.5 s on one core."""

ENGINE_CHARS = 24

ENGINE: Column[PeerReport] = Column(
    key="engine", heading="engine", show=lambda engine: words.plain_name(engine, ENGINE_CHARS), left=True
)


def peer_table(report: SwarmReport, pages: Collection[PeerId]) -> Fragment:
    """Return all peers of `report`; those in `pages` are links to their part of the page."""
    shown = [peer for place, peer in enumerate(report.peers) if place < PEERS_LISTED or peer.peer in pages]
    listed = {peer.peer for peer in shown}
    rest = [peer for peer in report.peers if peer.peer not in listed]
    parts = _parts(report)
    columns = [column for part in parts for column in part.columns]
    rows = [_row(peer, columns, has_page=peer.peer in pages) for peer in shown]
    feet = [_foot(f"{len(rest):,} others", replace(report, peers=tuple(rest)), columns)] if rest else []
    feet.append(_foot("total", report, columns))
    whole = tag(
        "table",
        tag("caption", "Peers, by rollouts admitted"),
        tag("thead", _groups(parts), _headings(columns)),
        tag("tbody", rows),
        tag("tfoot", feet),
        class_="peers",
        id="peer-table",
    )
    return scrolling("Table of peers", whole)


def _parts(report: SwarmReport) -> Sequence[Section[PeerReport]]:
    work, *others = sections(report)
    return (replace(work, columns=(work.columns[0], ENGINE, *work.columns[1:])), *others)


def _groups(parts: Sequence[Section[PeerReport]]) -> Fragment:
    """Return a heading above all columns of one subject."""
    above = [tag("th", part.title, scope="colgroup", colspan=len(part.columns)) for part in parts]
    return tag("tr", tag("td"), above, class_="groups")


def _headings(columns: Sequence[Column[PeerReport]]) -> Fragment:
    cells = [tag("th", column.title, scope="col", class_="left" if column.left else None) for column in columns]
    return tag("tr", tag("th", "peer", scope="col", class_="left"), cells, class_="columns")


def _row(peer: PeerReport, columns: Sequence[Column[PeerReport]], *, has_page: bool) -> Fragment:
    name = link_to(peer.peer, known_as(peer)) if has_page else known_as(peer)
    head = tag("th", name, scope="row", data_v=f"{name_of(peer).lower()} {short(peer.peer)}")
    return tag("tr", head, [_cell(peer, column) for column in columns])


def _cell(peer: PeerReport, column: Column[PeerReport]) -> Fragment:
    number = column.number(peer)
    written = column.cell(peer)
    if number is None:
        return tag("td", written, class_="left" if column.left else None, data_v="" if not column.left else None)
    return tag("td", written, data_v=f"{number:.12g}")


def _foot(name: str, report: SwarmReport, columns: Sequence[Column[PeerReport]]) -> Fragment:
    cells = [tag("td", column.total(report) if report.peers else "") for column in columns]
    return tag("tr", tag("th", name, scope="row"), cells)
