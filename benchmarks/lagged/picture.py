"""Draw the picture of the study: the loss at each S, and the rise of accuracy.

The picture has a row for each recipe. On the left is the final accuracy over S: every seed is a dot beside the mean of
its objective. On the right are the mean curves of our default at every S. Colours of Okabe and Ito have different
markers, so that nothing depends on colour alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.lagged.laboratory import Outcome
from benchmarks.lagged.recipe import DEFAULT, LAGS, OTHERS
from benchmarks.lagged.record import Records
from benchmarks.lagged.verdict import best_rate, runs
from node.reports.plots.png import BLUE, FAINT, GREEN, GREY, INK, ORANGE, draw_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOOKS: Mapping[str, tuple[str, str]] = {
    DEFAULT: (BLUE, "o"),
    "grpo": (ORANGE, "s"),
    "tis": (GREEN, "^"),
    "reinforce": (GREY, "x"),
}
SHADES = ("#111111", "#004c6d", "#0072b2", "#56a4d8", "#9fc9ea")
"""S = 0 is the darkest."""

ROW_IN = (12.0, 4.4)


def draw_study(records: Records, recipes: Sequence[str], path: Path) -> None:
    """Write the picture to `path` as PNG. Raises OSError."""
    size = (ROW_IN[0], ROW_IN[1] * len(recipes))
    draw_png(path, lambda figure: _draw(figure, records, recipes), size_in=size)


def _draw(figure: Figure, records: Records, recipes: Sequence[str]) -> None:
    axes = figure.subplots(len(recipes), 2, squeeze=False, width_ratios=[1.3, 1])
    for recipe, (ends, curves) in zip(recipes, axes, strict=True):
        rate = best_rate(records, recipe)
        _draw_ends(ends, records, recipe, rate)
        _draw_curves(curves, records, recipe, rate)
    figure.tight_layout()


def _draw_ends(axes: Axes, records: Records, recipe: str, rate: float) -> None:
    for shift, objective in enumerate((DEFAULT, *OTHERS)):
        colour, marker = LOOKS[objective]
        means = []
        for place, staleness in enumerate(LAGS):
            found = [outcome.final for outcome in runs(records, recipe, objective, staleness, rate).values()]
            at = place + (shift - 1.5) * 0.14
            axes.plot([at] * len(found), found, linestyle="", marker=marker, color=colour, alpha=0.35, markersize=4)
            if found:
                means.append((at, statistics.fmean(found)))
        axes.plot(*zip(*means, strict=True), color=colour, marker=marker, label=objective, linewidth=1.6)
    axes.set_xticks(range(len(LAGS)), [f"S = {staleness}" for staleness in LAGS])
    axes.set_ylim(-0.02, 1.02)
    axes.set_title(f"{recipe}: accuracy at the end, {rate:g} at every S", loc="left", color=INK)
    axes.grid(color=FAINT, axis="y")
    axes.legend(frameon=False, loc="lower left")


def _draw_curves(axes: Axes, records: Records, recipe: str, rate: float) -> None:
    for colour, staleness in zip(SHADES, LAGS, strict=True):
        found = list(runs(records, recipe, DEFAULT, staleness, rate).values())
        if found:
            axes.plot(*_mean_curve(found), color=colour, label=f"S = {staleness}", linewidth=1.6)
    axes.axhline(0.8, color=GREY, linewidth=0.8, linestyle="--")
    axes.set_ylim(-0.02, 1.02)
    axes.set_xlabel("training steps")
    axes.set_title(f"{DEFAULT}: accuracy of the current policy, mean over seeds", loc="left", color=INK)
    axes.grid(color=FAINT)
    axes.legend(frameon=False, loc="lower right")


def _mean_curve(outcomes: Sequence[Outcome]) -> tuple[list[int], list[float]]:
    columns = list(zip(*(outcome.curve for outcome in outcomes), strict=True))
    return [column[0][0] for column in columns], [statistics.fmean(value for _, value in column) for column in columns]
