"""Lay out a page of help as text: usage, paragraphs, and panels of two columns.

The layout is our own, and so imports no library: `volery --help` is often the first thing that somebody types.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

WIDTHS = (40, 100)
"""Columns that a page is laid out for: fewer cannot hold two columns, more are tiring to read."""

MOST_LEFT = 26
"""Columns of the left side of a panel. The text of a longer one begins on the next line."""

BOLD, CYAN, RESET = "\x1b[1m", "\x1b[36m", "\x1b[0m"


class Panel(NamedTuple):
    """A heading and rows: what is typed, and what it does."""

    title: str
    rows: Sequence[tuple[str, str]]


class Page(NamedTuple):
    """Everything that one page says. A paragraph may have lines of its own, which begin with spaces."""

    usage: str
    paragraphs: Sequence[str]
    panels: Sequence[Panel]


def terminal_width() -> int:
    """Return the columns to lay a page out for: those of the terminal, within WIDTHS."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        width = int(columns)
    else:
        try:
            width = os.get_terminal_size(sys.stdout.fileno()).columns
        except (AttributeError, OSError, ValueError):
            width = 80
    return min(max(width, WIDTHS[0]), WIDTHS[1])


def has_colours() -> bool:
    """Return whether standard output shows colours: a terminal that is not dumb, and no NO_COLOR."""
    try:
        is_terminal = sys.stdout.isatty()
    except (AttributeError, ValueError):
        return False
    return is_terminal and "NO_COLOR" not in os.environ and os.environ.get("TERM", "dumb") != "dumb"


def lay_out(page: Page, width: int, *, colours: bool = False, most_left: int = MOST_LEFT) -> str:
    """Return the page as lines of at most `width` columns, except where a single word is longer.

    most_left: columns of the left side of a panel, at most.
    """
    bold, cyan, reset = (BOLD, CYAN, RESET) if colours else ("", "", "")
    lines = list(_wrapped(f"Usage: {page.usage}", width, hang=2))
    for paragraph in page.paragraphs:
        lines.append("")
        for line in paragraph.split("\n"):
            indent = " " * (len(line) - len(line.lstrip()))
            lines += [indent + one for one in _wrapped(line.strip(), width - len(indent))]
    left = _left_column(page.panels, min(most_left, width // 3))
    for panel in page.panels:
        lines += ["", f"{bold}{panel.title}{reset}"]
        for typed, does in panel.rows:
            first, *more = list(_wrapped(does, width - left - 4)) or [""]
            if len(typed) > left:
                lines += [f"  {cyan}{typed}{reset}", f"{'':{left + 4}}{first}".rstrip()]
            else:
                lines.append(f"  {cyan}{typed}{reset}{'':{left - len(typed)}}  {first}".rstrip())
            lines += [f"{'':{left + 4}}{one}" for one in more]
    return "\n".join(lines) + "\n"


def _left_column(panels: Iterable[Panel], most: int) -> int:
    lengths = [len(typed) for panel in panels for typed, _ in panel.rows]
    return max((length for length in lengths if length <= most), default=most)


def _wrapped(text: str, width: int, *, hang: int = 0) -> Iterator[str]:
    """Yield lines of whole words; those after the first are indented by `hang`. Back-quotes are left out."""
    line = ""
    for word in text.replace("`", "").split():
        if line and len(line) + 1 + len(word) > width:
            yield line
            line = " " * hang + word
        else:
            line = f"{line} {word}" if line.strip() else line + word
    if line:
        yield line
