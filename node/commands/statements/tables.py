"""Tables of plain text that fit a width: columns two blanks apart, in as many tables as that takes.

Pure. What always holds: no cell is cut; the first column stands in each table; figures stand to the right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from node.reports.text.column_packing import packed_in
from protocol.core.ids import PeerId, short

GAP = "  "

NAMED = 8
"""Peers whose whole ids are written below a table that has only their ends: a volunteer's file is of one."""


def fitted(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lines of at most `width` characters, unless a cell is wider. A heading has one line or two."""
    first, *others = ([heading, *cells] for heading, *cells in zip(headings, *rows, strict=True))
    room = width - _width(first)
    (pieces,) = zip(*packed_in([[len(GAP) + _width(column) for column in others]], room), strict=True)
    tables = [_lines([first, *others[piece.begin : piece.end]]) for piece in pieces]
    return [line for place, table in enumerate(tables) for line in ([""] if place else []) + table]


def is_one(headings: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Whether all columns fit side by side."""
    return sum(map(_width, zip(headings, *rows, strict=True))) + len(GAP) * (len(headings) - 1) <= width


def of_peers(headings: Sequence[str], rows: Mapping[PeerId, Sequence[str]], width: int) -> list[str]:
    """A row for each peer, by its whole id where that fits and else by its end; `headings` are those of the others."""
    titles, whole = ["peer", *headings], [[peer, *cells] for peer, cells in rows.items()]
    if is_one(titles, whole, width):
        return fitted(titles, whole, width)
    lines = fitted(titles, [[short(peer), *cells] for peer, cells in rows.items()], width)
    if len(rows) > NAMED:
        return [*lines, "", f"The whole ids of these {len(rows):,} peers are in the JSON form (--json)."]
    return [*lines, "", *(f"{short(peer)} is {peer}" for peer in rows)]


def _width(column: Sequence[str]) -> int:
    return max(len(line) for cell in column for line in cell.split("\n"))


def _lines(columns: Sequence[Sequence[str]]) -> list[str]:
    """The first cell of each column is its heading."""
    written = [
        list(_column(column, len(max((column[0].split("\n") for column in columns), key=len)))) for column in columns
    ]
    return [GAP.join(cells).rstrip() for cells in zip(*written, strict=True)]


def _column(column: Sequence[str], heading_lines: int) -> Iterator[str]:
    heading, *cells = column
    titles = heading.split("\n")
    is_figures = all(cell.replace(",", "").replace(".", "").isdigit() or cell == "-" for cell in cells)
    for cell in (*[""] * (heading_lines - len(titles)), *titles, *cells):
        yield cell.rjust(_width(column)) if is_figures else cell.ljust(_width(column))
