"""Draw the plots of `node.reports.charts` as PNG with matplotlib, and write each file whole or not at all.

Invariants:

- matplotlib is imported only when drawing, and never with pyplot.
- Colours are those of Okabe and Ito, which people with colour blindness can tell apart. Markers or dashes differ as
  well.
- A peer's name is drawn literally. Dollars in it make no formula, and letters that the font lacks are boxes without a
  warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from node.reports.charts.plot import Look, Mark, Plot
from node.runtime.atomic_files import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE_IN = (12.0, 7.0)
DPI = 100

BLUE, ORANGE, GREY, GREEN, PURPLE = "#0072B2", "#D55E00", "#8C8C8C", "#009E73", "#CC79A7"
INK, SOFT, FAINT, RED = "#222222", "#666666", "#DDDDDD", "#C00000"

LOOKS: Mapping[Look, tuple[str, str, float, str]] = {
    Look.BLUE: (BLUE, "o", 5.0, "-"),
    Look.ORANGE: (ORANGE, "s", 7.0, "-"),
    Look.GREEN: (GREEN, "^", 7.0, "-"),
    Look.GREY: (GREY, "x", 8.0, "-"),
    Look.PURPLE: (PURPLE, "D", 6.0, "-"),
    Look.INK: (INK, "o", 5.0, "--"),
}
"""Colour, marker, its size, and dashes. A dot lies inside a square where two lines agree."""

MAX_MARKERS = 30
"""Markers of a line: more would touch each other and hide the line."""

MAX_TICK_LINES = 60
"""Lines across 900 pixels: more would look like a tint. If there are more marks, every k-th is drawn."""

MAX_TICK_NUMBERS = 10
"""Numbers that fit above a plot without touching."""

MAX_BAR_LABELS = 5
"""Labels that fit below a narrow panel without touching."""


def draw_png(path: Path, draw: Callable[[Figure], object], *, size_in: tuple[float, float] = SIZE_IN) -> None:
    """Let `draw` fill a figure, and write it to `path`. Raises OSError."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Text reads the setting when it is created, and the labels of an axis are created when they are drawn.
    with rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=size_in, dpi=DPI, facecolor="white")
        FigureCanvasAgg(figure)
        draw(figure)
        write_whole(path, lambda partial: figure.savefig(partial, format="png", metadata={"Software": None}))


def draw_heading(figure: Figure, title: str, below: str) -> None:
    """Write the title of a picture, and below it sentences that are wrapped at its right edge."""
    height_in = figure.get_size_inches()[1]
    figure.text(0.02, 1 - 0.4 / height_in, title, fontsize=16, fontweight="bold", color=INK)
    figure.text(0.02, 1 - 0.55 / height_in, below, fontsize=10.5, color=SOFT, va="top", linespacing=1.4, wrap=True)


def draw_frame(axes: Axes, *, grid: Literal["x", "y"] = "y") -> None:
    """Draw an axis on the left and one below, and grid lines."""
    axes.grid(axis=grid, color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=10, colors=INK, length=3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")


def draw_rows(axes: Axes, rows: Sequence[tuple[float, str]]) -> None:
    """Draw the frame of rows below each other; each row has a place and a name."""
    draw_frame(axes, grid="x")
    places = [place for place, _ in rows]
    axes.set_yticks(places, [name for _, name in rows])
    axes.set_ylim(max(places, default=0.0) + 0.7, -0.7)
    axes.tick_params(axis="y", labelsize=9, length=0)
    axes.spines["left"].set_visible(False)


def draw_plot(axes: Axes, plot: Plot, *, beside: Plot | None = None, above: float = 6.0) -> None:
    """Draw `plot` into `axes`. The caller has set the ends of the lower axis; tints, rows and limits are only on the
    page. Lines of `beside` are drawn behind it, with their own axis on the right. `above`: room below the title, in
    points.
    """
    draw_frame(axes)
    if beside is not None:
        other = axes.twinx()
        draw_frame(other)
        other.grid(visible=False)
        other.set_zorder(axes.get_zorder() - 1)
        axes.patch.set_visible(False)
        _draw_lines(other, beside)
        _draw_title(other, beside, "right", above)
    for band in plot.bands:
        axes.axvspan(band.began, band.ended, color=RED, alpha=0.07, linewidth=0, zorder=0.4)
    _draw_marks(axes, plot.marks)
    _draw_lines(axes, plot)
    _draw_title(axes, plot, "left", above)
    if plot.bars:
        _draw_bars(axes, plot)
    if plot.is_empty:
        axes.text(0.5, 0.5, "nothing yet", transform=axes.transAxes, ha="center", fontsize=11, color=SOFT)


def draw_legend(axes: Axes, place: Literal["best", "lower right", "upper left"] = "best") -> None:
    """Draw the legend at `place`, or where matplotlib finds that it hides the least."""
    if axes.get_legend_handles_labels()[1]:
        axes.legend(loc=place, fontsize=10, framealpha=0.95, edgecolor="none")


def _draw_title(axes: Axes, plot: Plot, side: Literal["left", "right"], above: float) -> None:
    """Write what the values are and their unit, in the colour of the line if there is only one."""
    colours = {LOOKS[line.look][0] for line in plot.lines}
    axes.set_title(
        f"{plot.title} ({plot.unit})" if plot.unit else plot.title, loc=side, y=1.0, pad=above, fontsize=11, wrap=True,
        va="bottom", color=colours.pop() if len(colours) == 1 else INK,
    )  # fmt: skip
    axes.set_xlabel(plot.across, fontsize=11, color=INK)


def _draw_lines(axes: Axes, plot: Plot) -> None:
    for line in plot.lines:
        if line.points:
            colour, marker, size, dashes = LOOKS[line.look]
            axes.plot(
                [x for x, _ in line.points], [y for _, y in line.points], color=colour, linestyle=dashes,
                linewidth=0.8 if line.quiet else 1.8, alpha=0.4 if line.quiet else 1.0,
                marker=marker if line.markers else "", markersize=size, markeredgewidth=1.5,
                markevery=-(-len(line.points) // MAX_MARKERS), label="" if line.quiet else line.name,
            )  # fmt: skip
    low, high = plot.ends
    axes.set_ylim(low - 0.02 * (high - low), high + 0.04 * (high - low))


def _draw_marks(axes: Axes, marks: Sequence[Mark]) -> None:
    """Draw named marks as dashed lines. The others are faint lines, fewer if there are many, and short ticks above, a
    few with their numbers.
    """
    for mark in marks:
        if mark.name:
            axes.axvline(mark.at, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
            axes.annotate(
                mark.name, (mark.at, 0.03), xycoords=("data", "axes fraction"), xytext=(5, 0),
                textcoords="offset points", fontsize=10, color=INK,
            )  # fmt: skip
    faint = sorted((mark for mark in marks if not mark.name), key=lambda mark: mark.at)
    if not faint:
        return
    for mark in faint[:: -(-len(faint) // MAX_TICK_LINES)]:
        axes.axvline(mark.at, color="#EEEEEE", linewidth=1, zorder=0.5)
    begin, end = axes.get_xlim()
    numbered: list[Mark] = []
    for mark in faint:
        if not numbered or mark.at - numbered[-1].at >= (end - begin) / MAX_TICK_NUMBERS:
            numbered.append(mark)
    ticks = axes.secondary_xaxis("top")
    ticks.set_xticks([mark.at for mark in numbered], [mark.number for mark in numbered])
    ticks.set_xticks([mark.at for mark in faint], minor=True)
    ticks.tick_params(labelsize=10, colors=SOFT, length=5)
    ticks.tick_params(which="minor", length=3, color="#AAAAAA")
    ticks.spines["top"].set_color("#BBBBBB")


def _draw_bars(axes: Axes, plot: Plot) -> None:
    bars = plot.bars
    drawn = axes.bar(range(len(bars)), [bar.value for bar in bars], color=GREEN, width=0.72)
    every = -(-len(bars) // MAX_BAR_LABELS)
    axes.set_xticks(range(0, len(bars), every), [bar.label for bar in bars[::every]])
    if every == 1:
        axes.bar_label(drawn, [plot.show(bar.value) for bar in bars], fontsize=10, color=INK)
