"""The picture: which share of sets is found, by tokens, for each test and model.

A row for each model, a column for each test; a line for each cheat, that of the pair of engines and number formats in
which it is found least. Colours with different markers, so that nothing rests on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.audits.policies import FAST, SLOW
from benchmarks.audits.recording import OWN, RELABELLED, lag_name
from benchmarks.audits.verdict import EVIDENCE, LOGPROBS, SIZES, TOPLOC, Judged
from node.reports.picture import BLUE, FAINT, GREEN, GREY, INK, ORANGE
from node.reports.png import draw_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TESTS = (
    (EVIDENCE, "ours: evidence at 100 to 1, asked after every audit"),
    (LOGPROBS, "mean distance of log probabilities"),
    (TOPLOC, "TOPLOC"),
)

LINES: Sequence[tuple[str, str, str, str]] = (
    ("other", OWN, INK, "o"),
    ("4-bit", OWN, BLUE, "s"),
    (lag_name(1, FAST), OWN, ORANGE, "^"),
    (lag_name(1, FAST), RELABELLED, ORANGE, "v"),
    ("other", RELABELLED, INK, "D"),
    ("fp8", OWN, GREEN, "P"),
    ("int8", OWN, GREEN, "X"),
    (lag_name(1, SLOW), OWN, GREY, "<"),
    (lag_name(10, SLOW), OWN, GREY, ">"),
)


def draw(models: Mapping[str, Judged], path: Path) -> None:
    """Write the picture to `path` as PNG. Raises OSError."""
    draw_png(path, lambda figure: _draw(figure, models), size_in=(16.0, 4.6 * len(models)))


def _draw(figure: Figure, models: Mapping[str, Judged]) -> None:
    grid = figure.subplots(len(models), len(TESTS), squeeze=False, sharey=True)
    for (name, judged), row in zip(models.items(), grid, strict=True):
        for (test, title), axes in zip(TESTS, row, strict=True):
            _draw_test(axes, judged, test)
            axes.set_title(f"{name}: {title}", loc="left", color=INK, fontsize=10)
    grid[0][0].legend(frameon=False, fontsize=8, loc="upper left")
    figure.tight_layout()


def _draw_test(axes: Axes, judged: Judged, test: str) -> None:
    axes.set_xscale("log")
    axes.set_xlim(SIZES[0] * 0.8, SIZES[-1] * 1.3)
    axes.set_ylim(-0.03, 1.03)
    axes.axvline(8192, color=GREY, linewidth=0.8, linestyle="--")
    axes.axhline(0.01, color=GREY, linewidth=0.8, linestyle=":")
    axes.grid(color=FAINT)
    axes.set_xlabel("tokens of evidence")
    if test not in judged.curves:
        axes.text(0.5, 0.5, "not measured here", transform=axes.transAxes, ha="center", color=GREY)
        return
    for deed, claims, colour, marker in LINES:
        shares = [judged.worst(test, [deed], claims, size) for size in SIZES]
        if None not in shares:
            style = "--" if claims == RELABELLED else "-"
            label = f"{deed}, {claims}" if claims == RELABELLED else deed
            axes.plot(SIZES, shares, style, color=colour, marker=marker, markersize=4, linewidth=1.4, label=label)
