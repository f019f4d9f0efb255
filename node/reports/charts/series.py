"""What the plots of a run have in common: curves of steps, restarts of the learner, and the time in which alarms stood.

Pure. What always holds: a value that is no number is not drawn; lines and bands are bounded, the newest are kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from node.reports.charts.plot import Band, Line, Look, Mark
from node.reports.charts.scale import Point, thinned
from node.reports.model.objective_figures import spells
from node.reports.model.report import Incarnation, Step, SwarmReport

RESTARTS_DRAWN = 40
"""The newest: more lines would be a tint."""

BANDS_DRAWN = 100
"""Alarms shaded in a plot, the newest."""


def step_points(steps: Sequence[Step], of: Callable[[Step], float]) -> list[Point]:
    """In order of time, without what is no number."""
    return sorted((step.at_s, value) for step in steps if math.isfinite(value := of(step)))


def line(name: str, points: Sequence[Point], look: Look, *, markers: bool = False) -> Line:
    """A curve without what is no number, made thinner."""
    return Line(name=name, points=thinned([p for p in points if math.isfinite(p[1])]), look=look, markers=markers)


def restarts(report: SwarmReport) -> tuple[Mark, ...]:
    """The newest restarts of the learner, and the step that each went on from."""
    return tuple(Mark(at=one.at_s, name=_restarted(one)) for one in report.incarnations[1:][-RESTARTS_DRAWN:])


def _restarted(incarnation: Incarnation) -> str:
    return f"restart, step {incarnation.base}"


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
