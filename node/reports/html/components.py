"""What several parts of the page are made of, besides tables: figures in large, pairs, sections, and how people are
named. Pure.
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
"""Of a name on the page; a table has room for it, and a longer one says nothing more."""

REASON_CHARS = 512
"""Of why a peer was banned, or a plan made."""


@dataclass(frozen=True, kw_only=True)
class Tile:
    """A figure in large, what it is, and a word on it."""

    name: str
    value: str
    more: str = ""


def scored_tiles(peer: PeerReport) -> Iterator[Tile]:
    """What a teacher scored; nothing of others."""
    if peer.scored is not None:
        refused = f"{peer.scored.refused:,} refused" if peer.scored.refused else ""
        yield Tile(name="groups scored", value=words.count(peer.scored.groups), more=refused)
        yield Tile(name="tokens scored", value=words.count(peer.scored.tokens))


def earned_tile(peer: PeerReport) -> Tile:
    """What it earned, and in what time."""
    earned = words.money(peer.cost, peer.price.currency)
    return Tile(name="earned", value=earned, more=f"in {words.duration(peer.active_s)} of work")


def reputation_tile(peer: PeerReport) -> Iterator[Tile]:
    """Its reputation, where it is known."""
    if peer.reputation is not None:
        yield Tile(name="reputation", value=f"{peer.reputation.score:.2f}", more=peer.reputation.band.value)


def tiles(figures: Iterable[Tile], *, kind: str = "") -> Fragment:
    """The figures side by side, as pairs of name and value."""
    cells = [
        tag("div", tag("dt", one.name), tag("dd", tag("b", one.value), tag("span", one.more) if one.more else None))
        for one in figures
    ]
    return tag("dl", cells, class_=f"tiles {kind}".rstrip())


def pairs(rows: Iterable[tuple[str, Child]]) -> Fragment:
    """Names and what there is to say of each."""
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in rows], class_="pairs")


def section(key: str, title: str, *children: Child) -> Fragment:
    """A part of the overview, with its heading."""
    heading = tag("h2", title, id=f"{key}-title")
    return tag("section", heading, children, id=key, aria_labelledby=f"{key}-title")


def name_of(peer: PeerReport) -> str:
    """What a peer calls itself, on one line; its role if it does not say."""
    return words.plain_name(peer.name, NAME_CHARS) or peer.does


def known_as(peer: PeerReport) -> Fragment:
    """A peer's name, and the end of its id, which nobody else has."""
    return tag("span", strangers(name_of(peer)), " ", tag("code", short(peer.peer)))


def page_id(peer: PeerId) -> str:
    """The id of the part of the page that is about `peer`."""
    return f"peer={peer}"


def link_to(peer: PeerId, *children: Child) -> Fragment:
    """A link to the part of the page that is about `peer`."""
    return tag("a", children, href=f"#peer={quote(peer, safe='')}")


def small_share(value: float) -> str:
    """A share of what there is some of, which is not shown as nothing."""
    return "<0.1%" if 0 < value < 0.001 else words.share(value)


def shortened(text: str, limit: int) -> str:
    """Text of a stranger, not longer than asked."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
