"""Lay out the screen of a learner or a node for its size: facts, a curve, peers, notices, pages of each. Pure.

Invariants:

- A picture has exactly the lines of the screen, and no line is wider than it.
- The facts of the lowest ranks and the newest notice are seen on a screen of any size from 20 columns and 10 lines on.
- The newest notices are whole: a long one takes several lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from node.reports.model.report import Role
from node.runtime import formatting as words
from node.ui.charts import chart, clock
from node.ui.facts import Fact, facts_of, scale_of
from node.ui.lines import num_lines, padded, shortened, wrapped
from node.ui.live_view import Notice, PeerView, ViewState
from node.ui.look import KEYS, Look, Page
from node.ui.peer_table import in_order, peer_table, present_line
from protocol.core.ids import short

LABEL_CELLS = 9
"""Cells for labels, and the space after them."""

NARROW = 40
"""On fewer columns, labels stand before their values instead of in a column."""

CHART_LINES = 12
"""Most lines of the curve of rewards."""

CHART_FROM = 14
"""Lines that must be left below the facts for a curve: with fewer, peers and notices need them."""

FEWEST_NOTICES = 4
"""Lines for notices that peers and curve leave, if there are so many."""


@dataclass(frozen=True, kw_only=True)
class Picture:
    """The lines of a screen, and what of the look they bear out: how far the page can be scrolled."""

    lines: list[Text]
    most: int = 0
    page_lines: int = 1


@dataclass(frozen=True, kw_only=True)
class Footing:
    """What the last line and the pages say beside the state. `has_keys`: whether keys are read. `report`: the command
    for the report."""

    has_keys: bool = False
    report: str = ""


NO_FOOTING = Footing()


def picture(state: ViewState, look: Look, width: int, height: int, footing: Footing = NO_FOOTING) -> Picture:
    """Return the screen for a terminal of this size."""
    head = [shortened(line, width) for line in _header(state, width)[: max(1, height // 4)]]
    foot = [_footer(state, look, width)] if footing.has_keys and height >= 4 else []
    room = max(0, height - len(head) - len(foot))
    match look.page:
        case Page.MAIN:
            body, most, page_lines = _main(state, look, width, room)
        case Page.PEERS:
            body, most, page_lines = _peers_page(state, look, width, room, footing)
        case Page.NOTICES:
            body, most, page_lines = _notices(state, look, width, room)
        case Page.HELP:
            body, most, page_lines = _scrolled(_help(width), look, room)
    body = [shortened(line, width) for line in body[:room]]
    blank = [Text() for _ in range(room - len(body))]
    return Picture(lines=[*head, *body, *blank, *foot][:height], most=most, page_lines=max(1, page_lines))


# The first page


def _main(state: ViewState, look: Look, width: int, room: int) -> tuple[list[Text], int, int]:
    facts = _fact_lines(state, width, max(1, room - room * 2 // 5))
    left = room - len(facts)
    curve = _curve(state, width, min(CHART_LINES, left // 3)) if left >= CHART_FROM and width >= NARROW else []
    if curve:
        facts = [line for line in facts if not line.plain.startswith(_label("reward"))]
    left = room - len(facts) - len(curve)
    waiting = min(left, _num_notice_lines(state.notices, width))
    peers = in_order(list(state.peers.values()))
    wanted = len(peers) + 2 if peers else 0  # with the heading, and a line between
    for_peers = min(wanted, max(left - min(waiting, max(FEWEST_NOTICES, left // 3)) - 1, 0))
    for_peers = for_peers if for_peers >= 3 else 0
    rows = max(0, for_peers - 2)
    most = len(peers) - rows if rows else 0
    first = min(look.scrolled, most)
    table = [Text(), *_peers(peers, width, first, rows)] if rows else []
    below = left - len(table)
    apart = [Text()] if waiting and below > 4 else []
    if rows:
        return [*facts, *curve, *table, *apart, *_notice_lines(state.notices, width, 0, below - len(apart))], most, rows
    newest, most, page_lines = _notices(state, look, width, below - len(apart))
    return [*facts, *curve, *apart, *newest], most, page_lines


def _fact_lines(state: ViewState, width: int, room: int) -> list[Text]:
    """Return the lines of as many facts as fit, in their order: those of low rank first."""
    facts = facts_of(state, width - LABEL_CELLS - 1 if width >= NARROW else width)
    blocks = [(fact, _fact(fact, width)) for fact in facts]
    while len(blocks) > 1 and sum(len(lines) for _, lines in blocks) > room:
        blocks.remove(max(reversed(blocks), key=lambda block: block[0].rank))
    return [line for _, lines in blocks for line in lines][:room]


def _fact(fact: Fact, width: int) -> list[Text]:
    if width < NARROW:
        return wrapped(Text(f"{fact.label} ", style="dim").append_text(fact.value), width, indent=2)
    lines = wrapped(fact.value, width - LABEL_CELLS - 1)
    label, blank = _label(fact.label), " " * (LABEL_CELLS + 1)
    return [
        Text.assemble((blank if place else label, "dim"), line) if line.plain or not place else Text()
        for place, line in enumerate(lines)
    ]


def _label(label: str) -> str:
    return f" {padded(label, LABEL_CELLS)}"


def _curve(state: ViewState, width: int, height: int) -> list[Text]:
    """Return the curve of rewards with its scale; nothing while they are all the same."""
    if state.role is not Role.LEARNER or len(set(state.rewards)) < 2 or height < 3:
        return []
    axis = 8
    values = list(state.rewards)[-max(2, width - LABEL_CELLS - axis - 2) :]
    said = f"{values[-1]:.3f}"
    lines = [Text.assemble((_label("reward"), "dim"), said, (f"  {scale_of(values)}", "dim"))]
    rows = chart(values, height - 1)
    for place, row in enumerate(rows):
        scale = f"{max(values):.3f}" if not place else f"{min(values):.3f}" if place == len(rows) - 1 else ""
        lines.append(Text.assemble((f"{_label('')}{padded(scale, axis, right=True)} ", "dim"), (row, "cyan")))
    return lines


def _peers(peers: Sequence[PeerView], width: int, first: int, rows: int) -> list[Text]:
    return [Text(" ").append_text(line) for line in peer_table(peers, width - 1, first, rows)]


# The other pages


def _peers_page(state: ViewState, look: Look, width: int, room: int, footing: Footing) -> tuple[list[Text], int, int]:
    said = [f"Its report: {footing.report}"] if footing.report else []
    if state.role is not Role.LEARNER:
        facts = [line for fact in facts_of(state, width) for line in _fact(fact, width)]
        told = [line for text in said for line in wrapped(Text(text), width)]
        return _scrolled([*told, Text(), *facts], look, room)
    peers = in_order(list(state.peers.values()))
    top = [line for text in [f"Peers: {present_line(peers)}.", *said] for line in wrapped(Text(text), width)]
    top = top[: max(0, room - 2)]
    rows = max(0, room - len(top) - 1)
    most = max(0, len(peers) - rows)
    if not peers:
        return [*top, Text("No node has joined yet.")], 0, 1
    return [*top, *_peers(peers, width, min(look.scrolled, most), rows)], most, rows


def _help(width: int) -> list[Text]:
    wide = max(len(key) for key, _ in KEYS) if width >= 72 else 0
    lines = []
    for key, meaning in KEYS:
        text = Text.assemble((padded(key, wide), "bold"), f"  {meaning}")
        lines += wrapped(text, width, indent=wide + 2)
    return lines


def _scrolled(lines: list[Text], look: Look, room: int) -> tuple[list[Text], int, int]:
    most = max(0, len(lines) - room)
    first = min(look.scrolled, most)
    return lines[first : first + room], most, room


def _notices(state: ViewState, look: Look, width: int, room: int) -> tuple[list[Text], int, int]:
    """Return the newest notices; scrolling down goes back to older ones."""
    room = max(0, room)
    most = max(0, _num_notice_lines(state.notices, width) - room) if room else 0
    return _notice_lines(state.notices, width, min(look.scrolled, most), room), most, room


# Parts


def _header(state: ViewState, width: int) -> list[Text]:
    alarm = ("ALARM " if state.alarms or state.nobody_works else "", "bold red")
    if width < NARROW:
        begins = Text(f"{state.role.value} {clock(state.now_s)}", style="bold")
        return [begins, Text.assemble(alarm, (state.activity, "dim"))]
    who = f" {short(state.me)}" if state.me else ""
    text = Text(" Volery ", style="bold").append(f"{state.role.value}{who}", style="bold")
    if state.title:
        text.append(f" in swarm {words.plain_name(state.title, 32)}")
    text.append(f"  {clock(state.now_s)}  ", style="dim").append(*alarm).append(state.activity, style="dim")
    return wrapped(text, width, indent=1)


def _footer(state: ViewState, look: Look, width: int) -> Text:
    keys = ["q stop"]
    if look.page is not Page.MAIN:
        keys = ["Esc back", *keys]
    elif state.role is Role.ROLLOUT:
        keys += [
            "p resume" if state.resting.startswith("paused by ") else "p pause",
            "d drain",
            "r report",
            "n notices",
        ]
    else:
        keys += ["r peers", "n notices", "i invite"]
    keys += [f"{look.scrolled:,} of {look.most:,} scrolled"] if look.scrolled else []
    return shortened(Text(f" {'  '.join([*keys, 'h help'])}", style="reverse"), width)


def _notice_lines(notices: Sequence[Notice], width: int, skipped: int, count: int) -> list[Text]:
    """Return the last `count` lines of the notices before the last `skipped` lines, the oldest first; each notice has
    as many lines as it takes."""
    lines: list[Text] = []
    for notice in reversed(notices):
        if len(lines) >= skipped + count:
            break
        lines += reversed(_notice(notice, width))
    return list(reversed(lines[skipped : skipped + count]))


def _num_notice_lines(notices: Sequence[Notice], width: int) -> int:
    """Return how many lines all notices take."""
    return sum(num_lines(f"{_at(n)}{n.text}", width, _indent(n, width)) for n in notices)


def _notice(notice: Notice, width: int) -> list[Text]:
    style = "bold red" if notice.text.startswith("ALARM") else ""
    return wrapped(Text.assemble((_at(notice), "dim"), (notice.text, style)), width, _indent(notice, width))


def _at(notice: Notice) -> str:
    return f" {clock(notice.at_s)}  "


def _indent(notice: Notice, width: int) -> int:
    return len(_at(notice)) if width >= NARROW else 2
