"""Fit styled text into lines of a terminal: wrap at words, shorten, pad. Pure.

Invariants:

- A line is never wider than asked, also with characters that take two cells.
- Wrapping loses no character but the spaces where a line ends.
"""

from __future__ import annotations

from functools import lru_cache

from rich.cells import cell_len, get_character_cell_size
from rich.text import Text

CACHED = 1024
"""Texts whose wrapping is remembered: those of one screen, as it hardly changes from one drawing to the next."""


def wrapped(text: Text, width: int, indent: int = 0) -> list[Text]:
    """Return `text` in lines of at most `width` cells; those after the first begin with `indent` spaces."""
    if width <= 0:
        return []
    indent = _bounded(indent, width)
    parts = [text[start:end] for start, end in _breaks(text.plain, width, width - indent)]
    lines = [part if not place else Text(" " * indent).append_text(part) for place, part in enumerate(parts)]
    return [shortened(line, width) for line in lines]


def num_lines(text: str, width: int, indent: int = 0) -> int:
    """Return how many lines `wrapped` makes of `text`."""
    return len(_breaks(text, width, width - _bounded(indent, width))) if width > 0 else 0


def shortened(text: Text, width: int) -> Text:
    """Return `text` on one line of at most `width` cells; a longer one ends with an ellipsis."""
    if width <= 0:
        return Text()
    if cell_len(text.plain) <= width:
        return text
    return text[: _fitting(text.plain, 0, width - 1)].append("…")


def _bounded(indent: int, width: int) -> int:
    """Return an indent that leaves half of the line, and room for a character of two cells."""
    return max(0, min(indent, width // 2, width - 2))


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Return `text` with spaces up to `width` cells, after it or (`right`) before it."""
    spaces = " " * max(0, width - cell_len(text))
    return spaces + text if right else text + spaces


@lru_cache(CACHED)
def _breaks(text: str, first: int, other: int) -> tuple[tuple[int, int], ...]:
    """Return where each line starts and ends, for a width of `first` cells and of `other` cells from the second on."""
    lines: list[tuple[int, int]] = []
    start, width = 0, first
    while start < len(text):
        end = _fitting(text, start, width)
        if end == start:
            end = start + 1  # a character that is wider than the whole line: an ellipsis will stand for it
        if end < len(text) and (space := text.rfind(" ", start + 1, end + 1)) > 0:
            lines.append((start, space))
            start = space + 1
        else:
            lines.append((start, end))
            start = end
        width = other
    return tuple(lines) or ((0, 0),)


def _fitting(text: str, start: int, width: int) -> int:
    """Return how far the characters from `start` on fit into `width` cells."""
    for place in range(start, len(text)):
        width -= get_character_cell_size(text[place])
        if width < 0:
            return place
    return len(text)
