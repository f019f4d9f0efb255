"""Follow the keys that a person presses: which page of the screen is shown, how far it is scrolled, what was ordered.

Pure: a key and a look give another look, and an order for the program if the key means one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

PAGE_LINES = 10
"""Lines by which a page key scrolls, on a screen of unknown height."""


class Page(Enum):
    """The pages of the screen."""

    MAIN = "main"
    PEERS = "peers"
    NOTICES = "notices"
    HELP = "help"


class Order(Enum):
    """What a key asks the program for."""

    STOP = "stop"
    PAUSE = "pause"
    DRAIN = "drain"
    SHOW_PRINTED = "show what was printed"


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is looked at. `scrolled`: lines of the page above the screen; `most`: as many as there are to scroll."""

    page: Page = Page.MAIN
    scrolled: int = 0
    most: int = 0
    lines: int = PAGE_LINES


ORDERS = {"q": Order.STOP, "p": Order.PAUSE, "d": Order.DRAIN, "i": Order.SHOW_PRINTED}
PAGES = {"r": Page.PEERS, "n": Page.NOTICES, "h": Page.HELP, "?": Page.HELP}

KEYS = (
    ("q", "stop in order, as Ctrl-C does"),
    ("p", "pause a node, or let it go on"),
    ("d", "drain a node: it delivers what it has, and ends"),
    ("r", "all peers; on a node, the line of its report"),
    ("n", "all notices"),
    ("i", "what was printed: the invite, the address of the page"),
    ("h, ?", "this page"),
    ("arrows, PgUp, PgDn, Home, End", "scroll"),
    ("Esc", "back to the first page"),
    ("Ctrl-Z", "put it into the background; fg brings it back"),
)
"""The keys, for the page of help."""


def press(look: Look, key: str) -> tuple[Look, Order | None]:
    """Return how it looks after `key`, and what the key orders; keys without a meaning change nothing."""
    if key in ORDERS:
        return look, ORDERS[key]
    if key in PAGES:
        page = PAGES[key]
        return Look(page=Page.MAIN if look.page is page else page, lines=look.lines), None
    moves = {
        "up": -1, "down": 1, "page up": -look.lines, "page down": look.lines, "home": -look.most, "end": look.most,
        " ": look.lines,
    }  # fmt: skip
    if key in moves:
        return replace(look, scrolled=max(0, min(look.most, look.scrolled + moves[key]))), None
    return (Look(lines=look.lines) if key == "escape" else look), None
