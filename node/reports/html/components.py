"""Provide the pieces of several parts of the page, besides tables: large numbers, pairs, sections, names of peers.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import quote

from node.reports.html.charts.markup import Child, Fragment, strangers, tag
from node.reports.model.report import PeerReport
from node.runtime import formatting as words
from protocol.core.ids import PeerId, short

NAME_CHARS = 48
"""Characters of a name on the page. A table has room for it, and a longer one adds nothing."""

REASON_CHARS = 512
"""Characters of the reason of a ban or a plan."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A large number, its name, and a short remark."""

    name: str
    value: str
    more: str = ""


def scored_tiles(peer: PeerReport) -> Iterator[Tile]:
    """Yield what a teacher scored; nothing for other peers."""
    if peer.scored is not None:
        refused = f"{peer.scored.refused:,} refused" if peer.scored.refused else ""
        yield Tile(name="groups scored", value=words.count(peer.scored.groups), more=refused)
        yield Tile(name="tokens scored", value=words.count(peer.scored.tokens))


def earned_tile(peer: PeerReport) -> Tile:
    """Return what it earned, and in which time."""
    earned = words.money(peer.cost, peer.price.currency)
    return Tile(name="earned", value=earned, more=f"in {words.duration(peer.active_s)} active")


def reputation_tile(peer: PeerReport) -> Iterator[Tile]:
    """Yield its reputation, if it is known."""
    if peer.reputation is not None:
        yield Tile(name="reputation", value=f"{peer.reputation.score:.2f}", more=peer.reputation.band.value)


def tiles(figures: Iterable[Tile], *, kind: str = "") -> Fragment:
    """Return the tiles side by side, as pairs of name and value."""
    cells = [
        tag("div", tag("dt", one.name), tag("dd", tag("b", one.value), tag("span", one.more) if one.more else None))
        for one in figures
    ]
    return tag("dl", cells, class_=f"tiles {kind}".rstrip())


def pairs(rows: Iterable[tuple[str, Child]]) -> Fragment:
    """Return names and the text about each."""
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in rows], class_="pairs")


def section(key: str, title: str, *children: Child) -> Fragment:
    """Return a part of the overview, with its heading."""
    heading = tag("h2", title, id=f"{key}-title")
    return tag("section", heading, children, id=key, aria_labelledby=f"{key}-title")


def name_of(peer: PeerReport) -> str:
    """Return a peer's display name on one line; its role if it has none."""
    return words.plain_name(peer.name, NAME_CHARS) or peer.does


def known_as(peer: PeerReport) -> Fragment:
    """Return a peer's name and the end of its id, which is unique."""
    return tag("span", strangers(name_of(peer)), " ", tag("code", short(peer.peer)))


def page_id(peer: PeerId) -> str:
    """Return the id of the part of the page about `peer`."""
    return f"peer={peer}"


def link_to(peer: PeerId, *children: Child) -> Fragment:
    """Return a link to the part of the page about `peer`."""
    return tag("a", children, href=f"#peer={quote(peer, safe='')}")


def small_share(value: float) -> str:
    """Return a share so that a small one is not shown as zero."""
    return "<0.1%" if 0 < value < 0.001 else words.share(value)


def shortened(text: str, limit: int) -> str:
    """Return a stranger's text, shortened to `limit` characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
