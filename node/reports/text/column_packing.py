"""Columns of several sections in as few tables as a width allows: which columns stand together.

Pure. What always holds: columns keep their order; a section that fits on its own is never cut; of all ways that are
left the one with the fewest tables is taken, of these the one that leaves the fewest columns of a section alone, then
that with the fewest cuts, then the most even one, so that no column has a table for itself that need not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Cost = tuple[int, int, int, int]
"""Tables, columns of a section that stand alone, cuts, and the sum of the squares of what is left free."""


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Columns `begin` to `end`, without the latter, of a section."""

    section: int
    begin: int
    end: int


def packed_in(widths: Sequence[Sequence[int]], room: int) -> list[list[Piece]]:
    """The tables, each of at most `room` characters unless a single column is wider; `widths` are those of the columns
    of each section, with the gap before them."""
    places = [(section, at) for section, columns in enumerate(widths) for at in range(len(columns))]
    best: list[tuple[Cost, tuple[int, ...]]] = [((0, 0, 0, 0), ())]
    for end in range(1, len(places) + 1):
        ways = []
        for begin in range(end):
            pieces = list(_pieces(places[begin:end]))
            taken = sum(sum(widths[one.section][one.begin : one.end]) for one in pieces)
            if not _is_allowed(pieces, taken, widths, room):
                continue
            before, starts = best[begin]
            ways.append((_plus(before, _cost(pieces, room - taken, widths)), (*starts, begin)))
        best.append(min(ways, default=((len(places) + 1, 0, 0, 0), ())))
    starts = best[-1][1]
    return [list(_pieces(places[at:end])) for at, end in zip(starts, (*starts[1:], len(places)), strict=True)]


def _pieces(places: Sequence[tuple[int, int]]) -> Iterator[Piece]:
    for section in dict.fromkeys(section for section, _ in places):
        inside = [at for one, at in places if one == section]
        yield Piece(section=section, begin=inside[0], end=inside[-1] + 1)


def _is_allowed(pieces: Sequence[Piece], taken: int, widths: Sequence[Sequence[int]], room: int) -> bool:
    """Whether it fits, and cuts nothing that would fit on its own."""
    is_one = len(pieces) == 1 and pieces[0].end - pieces[0].begin == 1
    if taken > room and not is_one:
        return False
    return all(_is_whole(one, widths) or sum(widths[one.section]) > room for one in pieces)


def _is_whole(piece: Piece, widths: Sequence[Sequence[int]]) -> bool:
    return piece.begin == 0 and piece.end == len(widths[piece.section])


def _cost(pieces: Sequence[Piece], free: int, widths: Sequence[Sequence[int]]) -> Cost:
    alone = sum(one.end - one.begin == 1 and not _is_whole(one, widths) for one in pieces)
    return 1, alone, int(pieces[0].begin > 0), max(0, free) ** 2


def _plus(one: Cost, other: Cost) -> Cost:
    return one[0] + other[0], one[1] + other[1], one[2] + other[2], one[3] + other[3]
