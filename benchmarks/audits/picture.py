"""Draw the share of sets that is detected, by tokens, for each test and model.

The picture has a row for each model and a column for each test. Each cheat is a line, for the pair of engines and
number formats that detects it least. Colours have different markers, so that nothing depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.audits.policies import FAST, SLOW
from benchmarks.audits.recording import OWN, RELABELLED, lag_name
from benchmarks.audits.verdict import EVIDENCE, LOGPROBS, SIZES, STRICT, TOPLOC, Judged
from node.reports.plots.png import BLUE, FAINT, GREEN, GREY, INK, ORANGE, draw_png

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TESTS = (
    (EVIDENCE, "ours, any engine"),
    (STRICT, "ours, all in float32"),
    (LOGPROBS, "log probabilities"),
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
    draw_png(path, lambda figure: _draw(figure, models), size_in=(16.0, 3.6 * len(models) + 0.6))


def _draw(figure: Figure, models: Mapping[str, Judged]) -> None:
    grid = figure.subplots(len(models), len(TESTS), squeeze=False, sharey=True)
    for (name, judged), row in zip(models.items(), grid, strict=True):
        for (test, title), axes in zip(TESTS, row, strict=True):
            _draw_test(axes, judged, test)
            axes.set_title(f"{name}: {title}", loc="left", color=INK, fontsize=11)
    for row in grid:
        row[0].set_ylabel("share of sets detected")
    for axes in grid[-1]:
        axes.set_xlabel("tokens of evidence")
    lines = {line.get_label(): line for axes in grid.flat for line in axes.get_lines() if line.get_marker() != "None"}
    figure.legend(lines.values(), list(lines), loc="lower center", ncols=len(LINES), frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.5 / (3.6 * len(models) + 0.6), 1, 1))


def _draw_test(axes: Axes, judged: Judged, test: str) -> None:
    axes.set_xscale("log")
    axes.set_xlim(SIZES[0] * 0.8, SIZES[-1] * 1.3)
    axes.set_ylim(-0.03, 1.03)
    axes.axvline(8192, color=GREY, linewidth=0.8, linestyle="--")
    axes.axhline(0.01, color=GREY, linewidth=0.8, linestyle=":")
    axes.grid(color=FAINT)
    axes.set_xticks([10**power for power in range(2, 7)], ["100", "1000", "10,000", "100,000", "1,000,000"], fontsize=8)
    axes.minorticks_off()
    if test not in judged.curves:
        axes.text(0.5, 0.5, "not measured here", transform=axes.transAxes, ha="center", color=GREY)
        return
    for deed, claims, colour, marker in LINES:
        shares = [judged.worst(test, [deed], claims, size) for size in SIZES]
        if None not in shares:
            style = "--" if claims == RELABELLED else "-"
            label = f"{deed}, {claims}" if claims == RELABELLED else str(deed)
            axes.plot(SIZES, shares, style, color=colour, marker=marker, markersize=4, linewidth=1.4, label=label)
