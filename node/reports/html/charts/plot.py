"""Plots as values: what is drawn, in which units, and what it says in words.

What always holds: a line differs from another of its plot in its colour and in its dashes or markers; every plot has a
sentence that tells what there is to see, for whoever does not see it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from node.reports.html.charts.scale import Point, compact
from node.reports.model.history import Span
from node.runtime import formatting as words


class Look(Enum):
    """Colour, dashes and marker of a line: those of the picture (`node.reports.plots.run_plot`). Values are classes of
    CSS.
    """

    BLUE = "blue"
    ORANGE = "orange"
    GREEN = "green"
    GREY = "grey"
    PURPLE = "purple"
    INK = "ink"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve. `markers`: points are few, and marked; `area`: what lies below is tinted; `steps`: each value holds
    until the next point; `quiet`: less than the others, drawn thin and without a name.
    """

    name: str
    points: tuple[Point, ...]
    look: Look
    markers: bool = False
    area: bool = False
    steps: bool = False
    quiet: bool = False


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar: what stands below it, and its height."""

    label: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of stretches above a plot, such as when a peer was here."""

    name: str
    spans: tuple[Span, ...]
    look: Look


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A vertical line with what it means: a restart. A mark without a name is a faint tick at the top: a version."""

    at: float
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One plot. `key` names it within its page, `unit` is that of the values, `across` what stands below bars, with its
    unit. `said` is the sentence, `wall` how many seconds the time axis covers.

    `bands` are tinted, and `band` says why, such as the time in which an alarm stood; `limit` is a horizontal line with
    its name. `low` and `high` are the ends of the axis of values, None for what fits. `show` writes a value beside that
    axis, `exact` in the table.
    """

    key: str
    title: str
    unit: str
    said: str
    wall: float = 1.0
    across: str = ""
    lines: tuple[Line, ...] = ()
    bars: tuple[Bar, ...] = ()
    rows: tuple[Row, ...] = ()
    marks: tuple[Mark, ...] = ()
    bands: tuple[Span, ...] = ()
    band: str = ""
    limit: tuple[float, str] | None = None
    low: float | None = 0.0
    high: float | None = None
    show: Callable[[float], str] = compact
    exact: Callable[[float], str] = words.figure

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing that could be drawn."""
        return not self.bars and not any(line.points for line in self.lines)
