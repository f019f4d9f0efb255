"""Define the name of each value of a row, and how it is written, for people and for programs.

Pure. One Column serves a terminal, a page, JSON and CSV, so that no form lacks or renames what another has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Generic, TypeVar

from rich.box import Box
from rich.console import RenderableType
from rich.text import Text

from node.reports.model.report import SwarmReport
from node.reports.text.tables import Strip, StripGroup, packed, side_by_side, titled
from node.runtime import formatting as words

Row = TypeVar("Row")


@dataclass(frozen=True, kw_only=True)
class Column(Generic[Row]):
    """One value of a row.

    Programs find it under `key` (in JSON within an object, if the key has a dot), and in CSV under `header`: by default
    the key, "" for nowhere. `spread` makes several columns of CSV from it, with the same headers for {}. `value`
    returns the value, by default the attribute named by `key`.

    People find it under `heading`, of one line or two; "" for nowhere. `show` writes a known value, `write` a whole
    cell that depends on more, `total` the value of all rows together. Rows for which `applies` is false have a dash.
    Rows are sorted by `rank`, by default the value.
    """

    key: str
    header: str | None = None
    spread: Callable[[Mapping[Any, Any]], Mapping[str, Any]] | None = None
    value: Callable[[Row], Any] | None = None
    heading: str = ""
    show: Callable[[Any], str] = str
    write: Callable[[Row], str] | None = None
    total: Callable[[SwarmReport], str] = lambda _: ""
    applies: Callable[[Row], bool] = lambda _: True
    rank: Callable[[Row], float] | None = None
    left: bool = False

    @property
    def title(self) -> str:
        """The heading on one line."""
        return self.heading.replace("-\n", "").replace("\n", " ")

    def of(self, row: Row) -> Any:
        """Return its value; None if it is not known."""
        return self.value(row) if self.value is not None else attribute(row, self.key)

    def cell(self, row: Row) -> str:
        """Return the cell as people read it."""
        if self.write is not None and self.applies(row):
            return self.write(row)
        return words.NOTHING if not self.applies(row) or (value := self.of(row)) is None else self.show(value)

    def number(self, row: Row) -> float | None:
        """Return the number by which rows are sorted; None for text, or if it is not known."""
        value = (self.rank or self.of)(row) if self.applies(row) else None
        return float(value) if isinstance(value, int | float) else None


@dataclass(frozen=True, kw_only=True)
class Section(Generic[Row]):
    """Columns about one subject."""

    title: str
    columns: tuple[Column[Row], ...]


def attribute(row: Any, path: str) -> Any:
    """Return the attribute at a path like "leases.issued"; None if anything on the way is None."""
    return reduce(lambda found, name: None if found is None else getattr(found, name), path.split("."), row)


def chosen(
    columns: Iterable[Column[Row]], sections: Mapping[str, str], untold: Iterable[str] = ()
) -> tuple[Section[Row], ...]:
    """Return sections by their titles and the keys of their columns. Columns that are `untold` are left out, and then
    sections without columns."""
    known, left_out = {column.key: column for column in columns}, {*untold}
    found = {
        title: tuple(known[key] for key in keys.split() if key not in left_out) for title, keys in sections.items()
    }
    return tuple(Section(title=title, columns=columns) for title, columns in found.items() if columns)


def drawn_sections(
    sections: Iterable[Section[Row]],
    rows: Sequence[Row],
    sums: Sequence[tuple[str, SwarmReport]],
    names: Strip,
    *,
    width: int,
    box: Box,
) -> Iterator[RenderableType]:
    """Yield the sections as tables of at most `width` columns. `sums`: names of the lines below the rows, and the
    reports that they add up. `names`: the first cell of each row."""
    dim = [(Text(name, style="dim"), report) for name, report in sums]
    first = Strip(heading=names.heading, cells=[*names.cells, *(name for name, _ in dim)], left=True)
    groups = (
        StripGroup(
            title=section.title,
            strips=tuple(
                Strip(
                    heading=column.heading,
                    cells=[*map(column.cell, rows), *(Text(column.total(one), style="dim") for _, one in dim)],
                    left=column.left,
                )
                for column in section.columns
            ),
        )
        for section in sections
    )
    for group in packed(groups, width - 1 - first.width):
        yield titled(group.title, side_by_side([first, *group.strips], box))
