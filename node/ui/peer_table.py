"""Lay out the table of peers in as many columns as fit, and only the rows that are seen. Pure.

Invariant: those that are here come first, by rollouts admitted; then those that left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.text import Text

from node.runtime import formatting as words
from node.ui.lines import padded, shortened
from node.ui.live_view import PeerView
from protocol.core.ids import short

NAME_CELLS = 32
"""Most cells for name and id: more would stretch the table for the sake of one peer."""


@dataclass(frozen=True, kw_only=True)
class _Column:
    heading: str
    rank: int
    """A narrow screen leaves out the columns with the highest."""
    value: Callable[[PeerView], str]


COLUMNS = (
    _Column(heading="version", rank=3, value=lambda peer: peer.installed or words.NOTHING),
    _Column(heading="admitted", rank=0, value=lambda peer: f"{peer.admitted:,}"),
    _Column(heading="rejected", rank=2, value=lambda peer: f"{peer.rejected:,}"),
    _Column(heading="per s", rank=1, value=lambda peer: _away(peer) or words.rate(peer.rate.per_s)),
    _Column(heading="leased", rank=4, value=lambda peer: str(peer.pending)),
    _Column(heading="up", rank=5, value=lambda peer: words.size(peer.bytes_up)),
    _Column(heading="down", rank=6, value=lambda peer: words.size(peer.bytes_down)),
)


def in_order(peers: Sequence[PeerView]) -> list[PeerView]:
    """Return the peers in the order of the table."""
    return sorted(peers, key=lambda peer: (bool(peer.gone), -peer.admitted, peer.peer))


def present_line(peers: Sequence[PeerView]) -> str:
    """Return how many peers are here, stand by and are gone."""
    gone = sum(1 for peer in peers if peer.gone)
    standing_by = sum(1 for peer in peers if peer.standing_by and not peer.gone)
    said = [f"{len(peers) - gone:,} here"]
    said += [f"{standing_by:,} of them on standby"] if standing_by else []
    return ", ".join([*said, *([f"{gone:,} gone"] if gone else [])])


def peer_table(peers: Sequence[PeerView], width: int, first: int, count: int) -> list[Text]:
    """Return a heading and the rows of up to `count` of `peers`, from place `first` on, `width` cells wide."""
    shown = peers[first : first + count]
    names = [shortened(Text(_name(peer)), NAME_CELLS).plain for peer in shown]
    columns, widths, name_cells = _fitting(shown, names, width)
    heading = padded("peer", name_cells) + "".join(
        "  " + padded(column.heading, cells, right=True) for column, cells in zip(columns, widths, strict=True)
    )
    rows = [shortened(Text(heading, style="dim"), width)]
    for peer, name in zip(shown, names, strict=True):
        figures = "".join(
            "  " + padded(column.value(peer), cells, right=True) for column, cells in zip(columns, widths, strict=True)
        )
        said = padded(shortened(Text(name), name_cells).plain, name_cells) + figures
        rows.append(shortened(Text(said, style="dim" if peer.gone else ""), width))
    return rows


def _fitting(shown: Sequence[PeerView], names: Sequence[str], width: int) -> tuple[list[_Column], list[int], int]:
    """Return the columns that fit, their widths, and the width of names."""
    name_cells = max([4, *(Text(name).cell_len for name in names)])
    columns = list(COLUMNS)
    while True:
        widths = [max([len(c.heading), *(len(c.value(peer)) for peer in shown)]) for c in columns]
        room = width - sum(cells + 2 for cells in widths)
        if room >= name_cells or not columns:
            return columns, widths, max(1, min(name_cells, room))
        if len(columns) == 1:
            return columns, widths, max(1, room)
        columns.remove(max(columns, key=lambda column: column.rank))


def _name(peer: PeerView) -> str:
    return f"{words.plain_name(peer.name)} {short(peer.peer)}".strip()


def _away(peer: PeerView) -> str:
    return "gone" if peer.gone else "standby" if peer.standing_by else ""
