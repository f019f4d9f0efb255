"""Write all tables and text, with rich: for a terminal with ruled lines and colours, for a file in plain ASCII. Pure.

Invariants:

- A number is never cut or squeezed: a column is as wide as its widest cell.
- If a table is too wide, its columns continue in further tables, with the same names at the left. A section that fits
  on its own is never cut, and sections share a table while they fit side by side.
- Lines have no blanks at their ends.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from rich.box import SIMPLE_HEAD, Box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from node.runtime.safe_console import HarmlessConsole

FILE_WIDTH = 100
"""Columns of text for a file or a pipe: the width that most mail programs and editors show."""

SCREEN = SIMPLE_HEAD

DASHES = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
"""A box with one line of dashes under the headings."""

GAP = 2
"""Blank characters between columns."""


def drawn(parts: Iterable[RenderableType], width: int, *, color: bool = False) -> str:
    """Return the parts, one below the other, in `width` columns, with escape sequences if `color`."""
    out = io.StringIO()
    console = HarmlessConsole(
        file=out, width=width, force_terminal=color, color_system="standard" if color else None, highlight=False,
        emoji=False, markup=False, legacy_windows=False, safe_box=False,
    )  # fmt: skip
    console.print(Group(*parts))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def titled(title: str, *body: RenderableType, above: int = 0, below: int = 1) -> RenderableType:
    """Return a heading with its body, one character from the edge, with the given number of blank lines around both."""
    return Padding(Group(Text(title, style="bold"), *body), (above, 0, below, 1))


def grid(rows: Iterable[Sequence[str | Text]], *, fixed: int = 1) -> Table:
    """Return rows without headings or rules: `fixed` columns that keep to one line, and a last one that wraps."""
    drawn = Table.grid(padding=(0, GAP, 0, 0))
    for _ in range(fixed):
        drawn.add_column(no_wrap=True)
    drawn.add_column(overflow="fold")
    for row in rows:
        drawn.add_row(*map(_text, row))
    return drawn


def pairs(told: Iterable[tuple[str, str]]) -> Table:
    """Return names, and the text about each."""
    return grid((Text(name, style="dim"), value) for name, value in told)


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    box: Box | None,
    *,
    first_left: bool = True,
    wrap_last: bool = False,
) -> Table:
    """Return a table in one piece. If it is too wide, names in its first column are broken (if `first_left`), and
    sentences in the last one if they may wrap."""
    last = len(headings) - 1
    columns = [
        Strip(heading=heading, cells=cells, left=place == 0 and first_left, folds=place == 0 and first_left)
        if place < last or not wrap_last
        else Strip(heading=heading, cells=cells, left=True, folds=True)
        for place, (heading, *cells) in enumerate(zip(headings, *rows, strict=True))
    ]
    return side_by_side(columns, box)


def fitted(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int, *, left: bool | None = None
) -> list[str]:
    """Return lines of tables without rules, of at most `width` characters unless two cells side by side are wider. Each
    table has the first column. Columns of numbers are aligned right, unless all must be aligned `left`."""
    first, *others = _strips(headings, rows, left)
    parts = list(packed([StripGroup(title="", strips=tuple(others))], width - first.width))
    widest = max(first.width + part.width for part in parts)
    return "\n".join(drawn([side_by_side([first, *part.strips], None)], widest) for part in parts).splitlines()


def is_one(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Return whether all columns fit side by side."""
    strips = _strips(headings, rows, None)
    return sum(strip.width + GAP for strip in strips) - GAP <= width


@dataclass(frozen=True, kw_only=True)
class Strip:
    """A column as it is in a table. `folds`: its cells are broken if the table is too wide."""

    heading: str
    cells: Sequence[str | Text]
    left: bool = False
    folds: bool = False

    @property
    def width(self) -> int:
        """Characters of its widest line."""
        lines = (line for cell in (self.heading, *self.cells) for line in str(cell).split("\n"))
        return max(map(cell_len, lines))


@dataclass(frozen=True, kw_only=True)
class StripGroup:
    """Columns about one subject."""

    title: str
    strips: tuple[Strip, ...]

    @property
    def width(self) -> int:
        """Characters, with the gap before each column."""
        return sum(GAP + strip.width for strip in self.strips)

    def split(self, room: int) -> list[StripGroup]:
        """Return groups of at most `room` characters, unless a single column is wider: as few as possible, of about
        equal width."""
        for number in count(1):
            found: list[list[Strip]] = [[] for _ in range(number)]
            taken = 0.0
            for strip in self.strips:
                middle = taken + (GAP + strip.width) / 2
                found[int(number * middle / self.width)].append(strip)
                taken += GAP + strip.width
            groups = [replace(self, strips=tuple(strips)) for strips in found if strips]
            if all(group.width <= room or len(group.strips) == 1 for group in groups):
                break
        return groups or [self]


def packed(sections: Iterable[StripGroup], room: int) -> Iterator[StripGroup]:
    """Yield the sections as they are arranged in tables of at most `room` characters beside the names."""
    open_: StripGroup | None = None
    for section in sections:
        if open_ is not None and open_.width + section.width <= room:
            open_ = StripGroup(title=f"{open_.title}, {section.title.lower()}", strips=open_.strips + section.strips)
            continue
        if open_ is not None:
            yield open_
        *before, open_ = section.split(room)
        yield from before
    if open_ is not None:
        yield open_


def side_by_side(strips: Sequence[Strip], box: Box | None) -> Table:
    """Return the columns side by side. A row that has only its name is left out."""
    drawn = Table(
        box=box, padding=(0, GAP if box is None else GAP - 1, 0, 0), pad_edge=False, show_edge=False, header_style="dim"
    )
    lines = max(1 if box is None else 2, *(strip.heading.count("\n") + 1 for strip in strips))
    for strip in strips:
        drawn.add_column(
            "\n" * (lines - 1 - strip.heading.count("\n")) + strip.heading,
            justify="left" if strip.left else "right",
            no_wrap=not strip.folds,
            overflow="fold",
            min_width=None if strip.folds else strip.width,
        )
    for name, *cells in zip(*(strip.cells for strip in strips), strict=True):
        if any(cells) or not cells:
            drawn.add_row(_text(name), *map(_text, cells))
    return drawn


def _strips(headings: Sequence[str], rows: Sequence[Sequence[str]], left: bool | None) -> list[Strip]:
    return [
        Strip(heading=heading, cells=cells, left=not all(map(_is_figure, cells)) if left is None else left)
        for heading, *cells in zip(headings, *rows, strict=True)
    ]


def _is_figure(cell: str) -> bool:
    return cell == "-" or cell.replace(",", "").replace(".", "").isdigit()


def _text(cell: str | Text) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)
