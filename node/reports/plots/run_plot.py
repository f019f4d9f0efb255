"""`reward.png`: what the swarm learned, against wall time.

One picture, 1200 by 700 pixels: greedy and sampled accuracy on held-out prompts, the mean training reward as a faint
line, every published version as a tick, how old the rollouts were that were trained on, below it entropy and mismatch
of every step with the alarms that stood, and, where that changed, who was on when. Colours of Okabe and Ito (distinct
to colour-blind eyes) and different markers, so that nothing rests on colour alone. matplotlib is imported only when
drawing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from node.config.swarm_config import regime
from node.reports.model.report import Evaluation, Publication, Step, SwarmReport
from node.reports.plots.activity_strip import MAX_ROWS, draw_turns
from node.reports.plots.objective_strip import draw_alarms, draw_figures, has_figures
from node.reports.plots.png import draw_png
from node.runtime import formatting as words

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY, GREEN = "#0072B2", "#D55E00", "#8C8C8C", "#009E73"
INK, FAINT = "#222222", "#DDDDDD"

MAX_VERSION_LINES = 60
"""More lines than this across 900 pixels would be a tint, not lines; every k-th is drawn then."""

MAX_VERSION_NUMBERS = 10
"""As many numbers fit above the plot without touching."""

MAX_LAGS = 12
"""Bars of the side panel; older ones share the last."""

MAX_LAG_NUMBERS = 5
"""As many fit below the side panel without touching."""

MAX_MARKERS = 30
"""More would run into each other and hide the line."""

LABEL_HEIGHT = 0.043
"""Of the plot's height: the distance at which two of the numbers beside the last points do not touch."""

STRIP_HEIGHT = 3.0
"""Of the strip of figures, where the plot has 12."""

SMOOTH_SHARE, MIN_SMOOTH_STEPS = 0.03, 5
"""Steps averaged in the reward line, as a share of all: one batch is noise around what was learned."""


def draw_reward(report: SwarmReport, path: Path) -> None:
    """Write the picture of `report` to `path` as PNG, whole or not at all. Raises OSError."""
    draw_png(path, lambda figure: _draw(figure, report))


def _draw(figure: Figure, report: SwarmReport) -> None:
    main, side, figures, turns = _axes(figure, report)
    figure.text(0.065, 0.94, _title(report), fontsize=16, fontweight="bold", color=INK)
    figure.text(0.065, 0.9, _subtitle(report), fontsize=11, color="#555555")
    end_s = max(report.wall_s, 1.0)
    _draw_frame(main, end_s, report.surviving_evaluations)
    _draw_versions(main, report.versions, restarted=len(report.incarnations) > 1)
    _draw_restarts(main, report)
    _draw_accuracy(main, report.surviving_evaluations, end_s)
    _draw_training_reward(main, report.steps)
    _draw_legend(main, report.surviving_evaluations)
    _draw_lags(side, report)
    draw_alarms(main, report, named=False)
    if figures is not None:
        draw_figures(figures, report, ink=INK)
    if turns is not None:
        draw_turns(turns, report, color=BLUE, ink=INK)
    strips = [axes for axes in (main, figures, turns) if axes is not None]
    for axes in strips[:-1]:
        axes.set_xlabel("")
        axes.tick_params(labelbottom=False)
    strips[-1].set_xlabel("wall time (s)", fontsize=12, color=INK)


def _axes(figure: Figure, report: SwarmReport) -> tuple[Axes, Axes, Axes | None, Axes | None]:
    """The plot, the panel at its side, and below it the strips: of figures if there are any, of who was on if that ever
    changed."""
    changed, measured = len({plan.active for plan in report.plans}) > 1, has_figures(report)
    figure.subplots_adjust(left=0.115 if changed else 0.065, right=0.98, top=0.8, bottom=0.1)
    rows = min(MAX_ROWS, len({peer for plan in report.plans for peer in plan.active}))
    heights = [12.0, *([STRIP_HEIGHT] if measured else []), *([1 + 0.55 * rows] if changed else [])]
    grid = figure.add_gridspec(
        len(heights), 2, width_ratios=[5.2, 1], height_ratios=heights, wspace=0.2, hspace=0.1 if len(heights) > 1 else 0
    )
    main = figure.add_subplot(grid[0, 0])
    side = figure.add_subplot(grid[0, 1])
    figures = figure.add_subplot(grid[1, 0], sharex=main) if measured else None
    turns = figure.add_subplot(grid[len(heights) - 1, 0], sharex=main) if changed else None
    return main, side, figures, turns


def _title(report: SwarmReport) -> str:
    peers = len(report.rollout_peers)
    who = f"{words.counted(peers, 'rollout peer')} and a learner"
    scores = report.surviving_evaluations
    if len(scores) < 2:
        return f"{who}: {words.duration(report.wall_s)} of training"
    took = words.duration(report.wall_s)
    values = [value for score in scores for value in (score.greedy, score.sampled)]
    what = "accuracy" if _are_shares(values) else "reward"
    return f"{who}: greedy {what} from {scores[0].greedy:.2f} to {scores[-1].greedy:.2f} in {took}"


def _subtitle(report: SwarmReport) -> str:
    window = "" if report.staleness is None else f", {regime(report.staleness)}"
    busy = "" if report.utilisation is None else f", learner training {words.share(report.utilisation)} of the time"
    versions, rollouts = (
        words.counted(len(report.versions), "policy version"),
        words.counted(report.admitted, "rollout"),
    )
    return f"{versions} published{window}, {rollouts} admitted{busy}"


def _draw_frame(axes: Axes, end_s: float, scores: tuple[Evaluation, ...]) -> None:
    """Accuracy from 0 to 1; a task whose rewards leave that range has scores, on an axis that fits them."""
    axes.set_xlim(-0.01 * end_s, end_s * 1.09)  # room for the last values, written beside their points
    axes.set_xlabel("wall time (s)", fontsize=12, color=INK)
    if _are_shares([value for score in scores for value in (score.greedy, score.sampled)]):
        axes.set_ylim(0, 1.04)
        axes.set_yticks([0, 0.2, 0.4, 0.6, 0.8, 1.0])
        axes.set_ylabel("accuracy on held-out prompts", fontsize=12, color=INK)
    else:
        axes.set_ylabel("mean reward on held-out prompts", fontsize=12, color=INK)
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    _quiet(axes)


def _are_shares(values: list[float]) -> bool:
    return all(0 <= value <= 1 for value in values)


def _quiet(axes: Axes) -> None:
    axes.tick_params(labelsize=11, colors=INK, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")


def _draw_versions(axes: Axes, versions: tuple[Publication, ...], *, restarted: bool) -> None:
    """A light line per version, thinned when many; all as short ticks; a few with their numbers above the plot."""
    every = max(1, -(-len(versions) // MAX_VERSION_LINES))
    for version in versions[::every]:
        axes.axvline(version.at_s, color="#EEEEEE", linewidth=1, zorder=0.5)
    above = axes.secondary_xaxis("top")
    numbered = _spread(versions, axes.get_xlim()[1])
    above.set_xticks(
        [v.at_s for v in numbered], [str(v.version) if restarted else str(v.version.version) for v in numbered]
    )
    above.set_xticks([v.at_s for v in versions], minor=True)
    above.tick_params(labelsize=10, colors="#666666", length=5)
    above.tick_params(which="minor", length=3, color="#AAAAAA")
    above.set_xlabel("policy version published", fontsize=10, color="#666666")
    above.spines["top"].set_color("#BBBBBB")


def _spread(versions: tuple[Publication, ...], width_s: float) -> list[Publication]:
    """At most MAX_VERSION_NUMBERS versions, far enough apart to be read."""
    chosen: list[Publication] = []
    for version in sorted(versions, key=lambda v: v.at_s):
        if not chosen or version.at_s - chosen[-1].at_s >= width_s / MAX_VERSION_NUMBERS:
            chosen.append(version)
    return chosen


def _draw_restarts(axes: Axes, report: SwarmReport) -> None:
    for incarnation in report.incarnations[1:]:
        axes.axvline(incarnation.at_s, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.annotate(
            f"learner restarted\nfrom step {incarnation.base}", (incarnation.at_s, 0.03),
            xytext=(5, 0), textcoords="offset points", fontsize=10, color=INK, va="bottom",
        )  # fmt: skip


def _draw_training_reward(axes: Axes, steps: tuple[Step, ...]) -> None:
    """On the same axis when both are shares, as those of right and wrong are; else on one of its own."""
    if not steps:
        return
    times, rewards = [s.at_s for s in steps], [s.reward for s in steps]
    target = axes
    if not _are_shares(rewards):
        target = axes.twinx()
        target.set_ylabel("mean training reward", fontsize=11, color="#777777")
        target.tick_params(labelsize=10, colors="#777777")
        target.spines["top"].set_visible(False)
        target.set_zorder(axes.get_zorder() - 1)  # behind the accuracy, which is what the picture is about
        axes.patch.set_visible(False)
    target.plot(times, rewards, color=GREY, linewidth=0.8, alpha=0.35, zorder=1.5)
    target.plot(times, _smoothed(rewards), color=GREY, linewidth=1.6, alpha=0.8, zorder=1.6)
    axes.plot([], [], color=GREY, linewidth=1.6, label="mean training reward")


def _smoothed(values: list[float]) -> list[float]:
    """Mean over the values around each, fewer at the ends."""
    reach = max(MIN_SMOOTH_STEPS, round(SMOOTH_SHARE * len(values))) // 2
    windows = (values[max(0, at - reach) : at + reach + 1] for at in range(len(values)))
    return [sum(window) / len(window) for window in windows]


def _draw_accuracy(axes: Axes, scores: tuple[Evaluation, ...], end_s: float) -> None:
    if not scores:
        axes.text(end_s / 2, 0.5, "no version was evaluated", ha="center", fontsize=14, color="#777777")
        return
    times = [score.at_s for score in scores]
    lines = [
        ("greedy", [score.greedy for score in scores], BLUE, "o"),
        ("sampled", [score.sampled for score in scores], ORANGE, "s"),
    ]
    lines += _pass_line(scores)
    for name, values, color, marker in lines:
        axes.plot(
            times, values, color=color, linewidth=2.2, label=f"{name}, held-out prompts", zorder=3,
            marker=marker, markersize=5.5, markevery=-(-len(times) // MAX_MARKERS),
        )  # fmt: skip
    _label_ends(axes, times[-1], [(name, values[-1], color) for name, values, color, _ in lines])


def _pass_line(scores: tuple[Evaluation, ...]) -> list[tuple[str, list[float], str, str]]:
    """pass@k for the largest k that every evaluation has, where that is not what one sample says."""
    ks = set.intersection(*(set(score.pass_at) for score in scores))
    most = max(ks, default=1)
    return [] if most == 1 else [(f"pass@{most}", [score.pass_at[most] for score in scores], GREEN, "^")]


def _draw_legend(axes: Axes, scores: tuple[Evaluation, ...]) -> None:
    """Where the lines are not: they end high when something was learned."""
    bottom, top = axes.get_ylim()
    high = not scores or scores[-1].sampled > bottom + 0.4 * (top - bottom)
    if not axes.get_legend_handles_labels()[1]:
        return
    axes.legend(
        loc="lower right" if high else "upper left", fontsize=11, frameon=True, framealpha=0.95, edgecolor="none"
    )


def _label_ends(axes: Axes, at_s: float, ends: list[tuple[str, float, str]]) -> None:
    """The last value of each line beside its point, moved apart where they would overlap."""
    bottom, top = axes.get_ylim()
    gap = LABEL_HEIGHT * (top - bottom)
    floor = bottom - gap
    for _, value, color in sorted(ends, key=lambda end: end[1]):
        y = max(value, floor + gap)
        floor = y
        axes.annotate(
            f"{value:.2f}", (at_s, y), xytext=(9, 0), textcoords="offset points", va="center",
            fontsize=12, fontweight="bold", color=color, annotation_clip=False,
        )  # fmt: skip


def _draw_lags(axes: Axes, report: SwarmReport) -> None:
    """Share of trained rollouts by lag, bars from 0 to the window."""
    axes.set_title("lag of trained\nrollouts (steps)", fontsize=11, color=INK, pad=10)
    _quiet(axes)
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])
    if not report.lags:
        axes.set_xticks([])
        axes.text(0.5, 0.5, "none yet", transform=axes.transAxes, ha="center", fontsize=11, color="#777777")
        return
    top = min(max(*report.lags, report.staleness or 0, 1), MAX_LAGS)
    shares = [0.0] * (top + 1)
    for lag, number in report.lags.items():
        shares[min(lag, top)] += number / report.trained
    axes.bar(range(top + 1), shares, color=GREEN, width=0.72)
    axes.set_ylim(0, max(shares) * 1.12)
    axes.set_xlim(-0.6, top + 0.6)
    numbered = list(range(0, top + 1, -(-(top + 1) // MAX_LAG_NUMBERS)))
    axes.set_xticks(numbered, [f"{lag}+" if lag == top < max(report.lags) else str(lag) for lag in numbered])
    if top <= 3:
        for lag, value in enumerate(shares):
            axes.text(
                lag,
                value,
                "<1%" if 0 < value < 0.01 else f"{100 * value:.0f}%",
                ha="center",
                va="bottom",
                fontsize=10,
                color=INK,
            )
