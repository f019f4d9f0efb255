"""Plots as values: what is drawn, in which units, and what it says in words; and what plots of a run have in common.

Pure. Invariants:
- A line differs from another of its plot in its colour and in its dashes or markers.
- Every plot has a sentence that tells what there is to see, for people who do not see it.
- A value that is no number is not drawn. Lines, marks and bands are bounded: the newest are kept.
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
"""Numbers beside the axis of values, at most."""


RESTARTS_DRAWN = 40
"""The newest: more lines would be a tint."""

BANDS_DRAWN = 100
"""Alarms shaded in a plot, the newest."""


class Look(Enum):
    """Colour, dashes and marker of a line, which each renderer knows by this name. Values are classes of CSS."""

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
    """A vertical line with what it means: a restart. A mark without a name is a faint tick at the top, a version, with
    its `number` where there is room for that.
    """

    at: float
    name: str = ""
    number: str = ""


@dataclass(frozen=True, kw_only=True)
class Band:
    """A stretch that is tinted, and why: an alarm."""

    began: float
    ended: float
    name: str


@dataclass(frozen=True, kw_only=True)
class Plot:
    """One plot. `key` names it within its page, `unit` is that of the values, `across` what stands below bars, with its
    unit. `said` is the sentence, `wall` how many seconds the time axis covers.

    `band` says what the `bands` have in common, such as that an alarm stood; `limit` is a horizontal line with its
    name. `low` and `high` are the ends of the axis of values, None for what fits. `show` writes a value beside that
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
    bands: tuple[Band, ...] = ()
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

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the axis of values, of which the second is the larger."""
        values = [y for line in self.lines for _, y in line.points] + [bar.value for bar in self.bars]
        values += [self.limit[0]] if self.limit else []
        low = min(values, default=0.0) if self.low is None else min([self.low, *values])
        room = 1.1 if self.limit else 1.0  # for the name of the limit
        high = ceiling(room * max(values, default=1.0), Y_TICKS) if self.high is None else self.high
        return low, high if high > low else low + (abs(low) or 1.0)


def step_points(steps: Sequence[Step], of: Callable[[Step], float]) -> list[Point]:
    """In order of time, without what is no number."""
    return sorted((step.at_s, value) for step in steps if math.isfinite(value := of(step)))


def line(name: str, points: Sequence[Point], look: Look, *, markers: bool = False) -> Line:
    """A curve without what is no number, made thinner."""
    return Line(name=name, points=thinned([p for p in points if math.isfinite(p[1])]), look=look, markers=markers)


def restarts(report: SwarmReport) -> tuple[Mark, ...]:
    """The newest restarts of the learner, and the step that each went on from."""
    return tuple(
        Mark(at=one.at_s, name=f"restart, step {one.base}") for one in report.incarnations[1:][-RESTARTS_DRAWN:]
    )


def bands(report: SwarmReport) -> tuple[Band, ...]:
    """When which alarms stood."""
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
