"""The strip below the picture of a run: entropy and mismatch of every step, and when alarms stood.

Drawn only where the ledger has these figures. Entropy has the axis on the left, the KL of the policies that generated
from the one that trains that on the right; alarms are shaded, the newest few named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from node.reports.model.objective_figures import spells
from node.reports.model.report import Step, SwarmReport

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PURPLE, BROWN, RED = "#CC79A7", "#A0522D", "#C00000"
"""Purple is Okabe and Ito's; the two lines differ in dashes as well."""

NAMED = 3
"""Alarms whose names fit above the strip."""


def has_figures(report: SwarmReport) -> bool:
    """Whether there is anything to draw."""
    return sum("entropy" in step.metrics for step in report.steps) > 1


def draw_figures(axes: Axes, report: SwarmReport, *, ink: str) -> None:
    """Draw the strip into `axes`, whose x is wall time in seconds."""
    steps = [step for step in report.steps if "entropy" in step.metrics]
    axes.plot(_times(steps), [s.metrics["entropy"] for s in steps], color=PURPLE, linewidth=1.6)
    axes.set_ylabel("entropy", fontsize=10, color=PURPLE)
    axes.set_ylim(bottom=0)
    other = axes.twinx()
    known = [step for step in steps if "mismatch_kl" in step.metrics]
    other.plot(_times(known), [s.metrics["mismatch_kl"] for s in known], color=BROWN, linewidth=1.2, linestyle="--")
    other.set_ylabel("KL", fontsize=10, color=BROWN)
    other.set_ylim(bottom=0)
    for each in (axes, other):
        each.tick_params(labelsize=9, colors=ink, length=3)
        each.locator_params(axis="y", nbins=3)
        for side in ("top", "left", "right"):
            each.spines[side].set_visible(False)
    draw_alarms(axes, report, named=True)


def draw_alarms(axes: Axes, report: SwarmReport, *, named: bool) -> None:
    """Shade the times at which alarms stood."""
    at = {step.step: step.at_s for step in report.steps}
    found = [spell for spell in spells(report.alarms) if spell.began in at]
    for number, spell in enumerate(found):
        ends_s = report.wall_s if spell.ended is None else at.get(spell.ended, report.wall_s)
        axes.axvspan(at[spell.began], ends_s, color=RED, alpha=0.07, linewidth=0, zorder=0.4)
        if named and number >= len(found) - NAMED:
            place = (number - max(0, len(found) - NAMED)) * 0.3
            axes.annotate(
                spell.alarm.replace("_", " "), (at[spell.began], 0.97 - place), xycoords=("data", "axes fraction"),
                xytext=(3, 0), textcoords="offset points", fontsize=8, color=RED, va="top",
            )  # fmt: skip


def _times(steps: list[Step]) -> list[float]:
    return [step.at_s for step in steps]
