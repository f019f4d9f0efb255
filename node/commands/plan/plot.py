"""`plan.png`: what every staleness window would cost, by our rule and by the paper's.

One picture, 1200 by 700 pixels: cost of a training step over S on the left; machines, and the share of its time that
the learner waits, on the right. Taking turns (S = 0) stands apart, as does the window that was asked for. Colours of
Okabe and Ito and different markers, so that nothing rests on colour alone; windows that the pool is too small for are
left empty and say so. matplotlib is imported only when drawing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from learner.provisioning.model.windows import Outcome
from node.commands.plan.plan import Plan
from node.reports.plots.png import draw_png
from node.reports.plots.run_plot import BLUE, FAINT, GREEN, GREY, INK, ORANGE
from node.runtime import formatting as words
from node.runtime.atomic_files import cannot_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NUMBERS = 12
"""Numbers on the axis of S that do not touch."""

SIZES = {"s": 7.0, "o": 5.0, "D": 7.0, "x": 8.0}
"""A dot lies inside a square where both rules agree."""

FULL_SIZE_WINDOWS = 24
"""With more of them marks are smaller, so that they do not touch on the right; not below a third."""

SMALL = 0.01
"""Of a unit of money: smaller amounts have numbers too long for the axis."""

Points = list[tuple[int, Outcome]]


def draw_plan(plan: Plan, path: Path) -> None:
    """Write the picture of `plan` to `path` as PNG, whole or not at all. Raises RunError."""
    try:
        draw_png(path, lambda figure: _draw(figure, plan))
    except OSError as error:
        raise cannot_write(path, "--picture", error) from None


def _draw(figure: Figure, plan: Plan) -> None:
    from matplotlib.ticker import MaxNLocator

    grid = figure.add_gridspec(2, 2, width_ratios=[1.7, 1], hspace=0.32, wspace=0.2)
    figure.subplots_adjust(left=0.07, right=0.98, top=0.82, bottom=0.1)
    cost, machines, bubble = (figure.add_subplot(part) for part in (grid[:, 0], grid[0, 1], grid[1, 1]))
    figure.text(0.07, 0.94, _title(plan), fontsize=16, fontweight="bold", color=INK)
    figure.text(0.07, 0.9, _subtitle(plan), fontsize=11, color="#555555")
    currency, together = plan.terms.currency, _together(plan)
    steps = "a training step" if together == 1 else f"{together:,} training steps"
    _panel(cost, plan, lambda outcome: together * outcome.cost_per_step, f"cost of {steps} ({currency})")
    _panel(machines, plan, lambda outcome: len(outcome.choice.chosen), "machines")
    machines.yaxis.set_major_locator(MaxNLocator(nbins="auto", integer=True))
    _panel(bubble, plan, lambda outcome: max(0.0, 100 * outcome.bubble), "learner waits (% of its time)")
    for axes in (cost, bubble):
        axes.set_xlabel("staleness window S (training steps)", fontsize=12, color=INK)
    cost.legend(loc="best", fontsize=11, frameon=True, framealpha=0.95, edgecolor="none")


def _together(plan: Plan) -> int:
    """Of so many steps is the cost drawn, so that the numbers beside the axis stay short."""
    outcomes = [each for w in plan.windows for each in (w.ours, w.paper and w.paper.outcome, w.everyone)]
    dearest = max([one.cost_per_step for one in outcomes if isinstance(one, Outcome)], default=0.0)
    return next((steps for steps in (1, 1000) if dearest * steps >= SMALL or dearest == 0), 1_000_000)


def _title(plan: Plan) -> str:
    ours = plan.asked.ours
    if not isinstance(ours, Outcome):
        return f"S = {plan.terms.staleness}: no machines of this pool keep the learner busy"
    machines = len(ours.choice.chosen)
    cost = words.money(ours.cost_per_step, plan.terms.currency)
    return f"S = {ours.staleness}: {machines} {'machine' if machines == 1 else 'machines'}, {cost} a training step"


def _subtitle(plan: Plan) -> str:
    timings = plan.terms.setting.timings
    told = f"T_train {timings.train_s:.5g} s for R = {timings.rollouts:,} rollouts, T_bcast {timings.broadcast_s:.4g} s"
    paper = plan.asked.paper.outcome if plan.asked.paper else None
    ours = plan.asked.ours
    if paper is None or not isinstance(ours, Outcome):
        return f"{told}, T_gen {timings.generation_s:.4g} s"
    return (
        f"{told}, T_gen {timings.generation_s:.4g} s; the paper's rule takes {len(paper.choice.chosen)} machines, "
        f"{words.money(paper.cost_per_step, plan.terms.currency)} a step"
    )


def _panel(axes: Axes, plan: Plan, value: Callable[[Outcome], float], title: str) -> None:
    ours: Points = [(w.staleness, w.ours) for w in plan.windows if isinstance(w.ours, Outcome)]
    papers: Points = [(w.staleness, w.paper.outcome) for w in plan.windows if w.paper and w.paper.outcome]
    _frame(axes, plan, title)
    short: Points = [(w.staleness, w.everyone) for w in plan.windows if w.everyone]
    scale = max(1 / 3, min(1.0, FULL_SIZE_WINDOWS / len(plan.windows)))
    for points, name, color, marker, line in (
        (papers, "the paper's rule and choice", ORANGE, "s", "-"),
        ([(s, outcome) for s, outcome in ours if s > 0], "our rule, the cheapest set", BLUE, "o", "-"),
        ([(s, outcome) for s, outcome in ours if s == 0], "taking turns (S = 0)", GREEN, "D", "none"),
        (short, "all machines, and too few", GREY, "x", "none"),
    ):
        if points:
            axes.plot([s for s, _ in points], [value(outcome) for _, outcome in points], color=color, marker=marker,
                      markersize=scale * SIZES[marker], linewidth=2.2, markeredgewidth=1.8, linestyle=line, zorder=3,
                      label=name)  # fmt: skip
    top = max([value(outcome) for _, outcome in (*ours, *papers, *short)], default=0.0) or 1.0
    axes.set_ylim(-0.03 * top, 1.12 * top)


def _frame(axes: Axes, plan: Plan, title: str) -> None:
    last = plan.terms.max_staleness
    axes.set_title(title, fontsize=12, color=INK, loc="left", pad=8)
    axes.set_xlim(-0.5, last + 0.5)
    every = -(-(last + 1) // MAX_NUMBERS)
    axes.set_xticks(range(0, last + 1, every))
    axes.axvspan(plan.terms.staleness - 0.4, plan.terms.staleness + 0.4, color="#F0F0F0", zorder=0, linewidth=0,
                 label="the window asked for")  # fmt: skip
    axes.grid(axis="y", color=FAINT, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=11, colors=INK, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color("#999999")
