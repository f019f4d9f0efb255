"""Draw `reward.png`: what the swarm learned, against wall time.

One picture of 1200 by 700 pixels, of plots that the page also has: rewards and evaluations with every published version
as a tick, and beside them the lag of the trained rollouts. Below are entropy and mismatch of every step with the active
alarms, and, if plans changed it, which peers were active when.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from node.config.swarm_config import regime
from node.reports.charts.learning_curve import lead, reward, together
from node.reports.charts.plot import Plot
from node.reports.charts.run_curves import lags, trainer_figure
from node.reports.model.report import SwarmReport
from node.reports.plots.png import BLUE, INK, RED, draw_heading, draw_legend, draw_plot, draw_png, draw_rows
from node.runtime import formatting as words
from protocol.core.ids import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STRIP_HEIGHT = 3.0
"""Height of the strip of metrics; the plot has 12."""

NAMED_ALARMS = 3
"""Alarms whose names fit into the strip, the newest."""

MAX_ROWS = 10
"""Names of peers that fit below each other; those that were active longest are named."""

NAME_CHARS = 12


def draw_reward(report: SwarmReport, path: Path) -> None:
    """Write the picture of `report` to `path` as PNG, whole or not at all. Raises OSError."""
    draw_png(path, lambda figure: _draw(figure, report))


def _draw(figure: Figure, report: SwarmReport) -> None:
    learned, entropy = lead(report), trainer_figure(report, "entropy")
    changed, rows = len({plan.active for plan in report.plans}) > 1, min(MAX_ROWS, len(report.planned_spans))
    draw_heading(figure, _title(report), f"{_subtitle(report)}\n{learned.said}")
    heights = [12.0, *([] if entropy.is_empty else [STRIP_HEIGHT]), *([1 + 0.55 * rows] if changed else [])]
    grid = figure.add_gridspec(
        len(heights), 2, width_ratios=[4.6, 1], height_ratios=heights, wspace=0.16, hspace=0.25,
        left=0.115 if changed else 0.06, right=0.98, top=0.76, bottom=0.09,
    )  # fmt: skip
    main, side = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    strips = [figure.add_subplot(grid[place, 0], sharex=main) for place in range(1, len(heights))]
    end_s = max(report.wall_s, 1.0)
    main.set_xlim(-0.01 * end_s, 1.01 * end_s)
    draw_plot(main, learned, beside=None if together(report) else reward(report), above=22)
    bottom, top = main.get_ylim()
    ends = [line.points[-1][1] for line in learned.lines if line.points]
    # Where the lines are not: they end high if something was learned.
    draw_legend(main, "lower right" if min(ends, default=top) > bottom + 0.4 * (top - bottom) else "upper left")
    draw_plot(side, lags(report))
    if not entropy.is_empty:
        _draw_objective(strips[0], entropy, trainer_figure(report, "mismatch_kl"))
    if changed:
        _draw_turns(strips[-1], report)
    for axes in (main, *strips):
        axes.label_outer()
    axes.set_xlabel("time since the start (s)", fontsize=11, color=INK)


def _draw_objective(axes: Axes, entropy: Plot, mismatch: Plot) -> None:
    """Draw the strip of metrics, in which alarms are named."""
    draw_plot(axes, entropy, beside=mismatch)
    for number, alarm in enumerate(entropy.bands[-NAMED_ALARMS:]):
        axes.annotate(
            alarm.name, (alarm.began, 0.97 - 0.3 * number), xycoords=("data", "axes fraction"), xytext=(3, 0),
            textcoords="offset points", fontsize=8, color=RED, va="top",
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.5},
        )  # fmt: skip


def _draw_turns(axes: Axes, report: SwarmReport) -> None:
    """Draw the strip of peers: a row for each, a bar for each stretch of time, a line for each new plan."""
    spans = report.planned_spans
    longest = sorted(spans, key=lambda peer: -sum(end_s - begin_s for begin_s, end_s in spans[peer]))[:MAX_ROWS]
    rows = [peer for peer in spans if peer in longest]
    names = {peer.peer: words.plain_name(peer.name, NAME_CHARS) for peer in report.peers}
    draw_rows(axes, [(place, names.get(peer) or short(peer)) for place, peer in enumerate(rows)])
    for place, peer in enumerate(rows):
        axes.broken_barh([(begin, end - begin) for begin, end in spans[peer]], (place - 0.31, 0.62), color=BLUE)
    for plan in report.plans:
        axes.axvline(plan.at_s, color="#BBBBBB", linewidth=0.8, zorder=0.5)
    hidden = len(spans) - len(rows)
    axes.set_ylabel(f"active (+{hidden})" if hidden else "active", fontsize=10, color=INK)


def _title(report: SwarmReport) -> str:
    who = f"{words.counted(len(report.rollout_peers), 'rollout peer')} and a learner"
    scores, took = report.surviving_evaluations, words.duration(report.wall_s)
    if len(scores) < 2:
        return f"{who}: {took} of training"
    return f"{who}: greedy held-out score from {scores[0].greedy:.2f} to {scores[-1].greedy:.2f} in {took}"


def _subtitle(report: SwarmReport) -> str:
    window = "" if report.staleness is None else f", {regime(report.staleness)}"
    busy = "" if report.utilisation is None else f", learner training {words.share(report.utilisation)} of its time"
    versions = words.counted(len(report.versions), "policy version")
    return f"{versions} published{window}, {words.counted(report.admitted, 'rollout')} admitted{busy}"
