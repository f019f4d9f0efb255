"""Hold plots as values: what is drawn, its units, and a sentence about it; and what the plots of a run share. Pure.

Invariants:

- A line differs from another one of its plot in its colour, and also in its dashes or markers.
- Every plot has a sentence that says what it shows, for people who do not see it.
- Infinity and NaN are not drawn. The number of lines, marks and bands is bounded: the newest are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from node.reports.charts.scale import Point, ceiling, compact, thinned
from node.reports.model.history import Span
from node.reports.model.objective_figures import spells
from node.reports.model.report import Step, SwarmReport
from node.runtime import formatting as words

Y_TICKS = 5
"""Most numbers beside the axis of values."""


RESTARTS_DRAWN = 40
"""Restarts that are drawn, the newest: more lines would look like a tint."""

BANDS_DRAWN = 100
"""Alarms that are shaded in a plot, the newest."""


class Look(Enum):
    """Colour, dashes and marker of a line; each renderer knows them by this name. Values are CSS classes."""

    BLUE = "blue"
    ORANGE = "orange"
    GREEN = "green"
    GREY = "grey"
    PURPLE = "purple"
    INK = "ink"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A curve. `markers`: the points are few, and marked. `area`: the area below is tinted. `steps`: each value holds
    until the next point. `quiet`: less important than the others, drawn thin and without a name.
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
    """One bar: the label below it, and its height."""

    label: str
    value: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of stretches above a plot, such as when a peer was present."""

    name: str
    spans: tuple[Span, ...]
    look: Look


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A vertical line with its meaning, such as a restart. A mark without a name is a faint tick at the top for a
    version, with its `number` if there is room.
    """

    at: float
    name: str = ""
    number: str = ""


@dataclass(frozen=True, kw_only=True)
class Band:
    """A tinted stretch, and its reason: an alarm."""

    began: float
    ended: float
    name: str


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One plot. `key`: its name within the page. `unit`: of the values. `said`: the sentence about it. `wall`: seconds
    that the time axis covers. `across`: the label below bars, with its unit.

    `band`: what the `bands` have in common, such as that an alarm was active. `limit`: a horizontal line with its name.
    `low` and `high`: the ends of the axis of values, None for what fits. `show` writes a value beside that axis,
    `exact` in the table.
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
    bands: tuple[Band, ...] = ()
    band: str = ""
    limit: tuple[float, str] | None = None
    low: float | None = 0.0
    high: float | None = None
    show: Callable[[float], str] = compact
    exact: Callable[[float], str] = words.figure

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to draw."""
        return not self.bars and not any(line.points for line in self.lines)

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the axis of values; the second is the larger."""
        values = [y for line in self.lines for _, y in line.points] + [bar.value for bar in self.bars]
        values += [self.limit[0]] if self.limit else []
        low = min(values, default=0.0) if self.low is None else min([self.low, *values])
        room = 1.1 if self.limit else 1.0  # for the name of the limit
        high = ceiling(room * max(values, default=1.0), Y_TICKS) if self.high is None else self.high
        return low, high if high > low else low + (abs(low) or 1.0)


def step_points(steps: Sequence[Step], of: Callable[[Step], float]) -> list[Point]:
    """Return the points in order of time, without infinity and NaN."""
    return sorted((step.at_s, value) for step in steps if math.isfinite(value := of(step)))


def line(name: str, points: Sequence[Point], look: Look, *, markers: bool = False) -> Line:
    """Return a curve without infinity and NaN, thinned."""
    return Line(name=name, points=thinned([p for p in points if math.isfinite(p[1])]), look=look, markers=markers)


def restarts(report: SwarmReport) -> tuple[Mark, ...]:
    """Return the newest restarts of the learner, and the step from which each continued."""
    return tuple(
        Mark(at=one.at_s, name=f"restart, step {one.base}") for one in report.incarnations[1:][-RESTARTS_DRAWN:]
    )


def bands(report: SwarmReport) -> tuple[Band, ...]:
    """Return when which alarms were active."""
    at = {step.step: step.at_s for step in report.steps}
    found = [spell for spell in spells(report.alarms) if spell.began in at][-BANDS_DRAWN:]
    return tuple(
        Band(
            began=at[spell.began],
            ended=report.wall_s if spell.ended is None else at.get(spell.ended, report.wall_s),
            name=spell.alarm.replace("_", " "),
        )
        for spell in found
    )
