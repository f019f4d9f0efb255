"""Draw `plan.png`: the cost of every staleness window by our rule, and by ECHO-2's if that was requested.

One picture of 1200 by 700 pixels: on the left the cost of a training step over S; on the right the machines, and the
fraction of its time that the learner waits. S = 0 stands apart, and the requested window is marked. Windows for which
the pool is too small are labelled so.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from learner.provisioning.model.windows import Outcome
from node.commands.plan.plan import Plan
from node.reports.charts.plot import Line, Look, Plot
from node.reports.plots.png import draw_heading, draw_legend, draw_plot, draw_png
from node.runtime import formatting as words
from node.runtime.atomic_files import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALL = 0.01
"""Units of money: smaller amounts have numbers too long for the axis."""


def draw_plan(plan: Plan, path: Path) -> None:
    """Write the picture of `plan` to `path` as PNG, whole or not at all. Raises RunError."""
    with writing(path, "--picture"):
        draw_png(path, lambda figure: _draw(figure, plan))


def _draw(figure: Figure, plan: Plan) -> None:
    draw_heading(figure, _title(plan), _subtitle(plan))
    grid = figure.add_gridspec(
        2, 2, width_ratios=[1.7, 1], left=0.06, right=0.98, top=0.83, bottom=0.09, hspace=0.4, wspace=0.15
    )
    currency, together, asked = plan.terms.currency, _together(plan), plan.terms.staleness
    steps = "a training step" if together == 1 else f"{together:,} training steps"
    cost = _plot(plan, f"cost of {steps}", currency, lambda outcome: together * outcome.cost_per_step)
    machines = _plot(plan, "machines", "", lambda outcome: len(outcome.choice.chosen))
    waits = _plot(plan, "learner waits", "% of its time", lambda outcome: max(0.0, 100 * outcome.bubble))
    margin = 0.5 + 0.02 * plan.terms.max_staleness
    for part, plot in ((grid[:, 0], cost), (grid[0, 1], machines), (grid[1, 1], waits)):
        axes = figure.add_subplot(part)
        axes.set_xlim(-margin, plan.terms.max_staleness + margin)
        axes.axvspan(asked - 0.4, asked + 0.4, color="#F0F0F0", zorder=0, linewidth=0, label="requested window")
        draw_plot(axes, plot)
        axes.locator_params(axis="x", integer=True)
        axes.locator_params(axis="y", integer=plot is machines)
        if plot is cost:
            draw_legend(axes)


def _together(plan: Plan) -> int:
    """Return the number of steps whose cost is drawn: so many that the numbers beside the axis stay short."""
    outcomes = [each for w in plan.windows for each in (w.ours, w.everyone)]
    outcomes += plan.papers.values()
    dearest = max([one.cost_per_step for one in outcomes if isinstance(one, Outcome)], default=0.0)
    return next((steps for steps in (1, 1000) if dearest * steps >= SMALL or dearest == 0), 1_000_000)


def _title(plan: Plan) -> str:
    ours = plan.asked.ours
    if not isinstance(ours, Outcome):
        return f"S = {plan.terms.staleness}: no machines of this pool keep the learner busy"
    cost = words.money(ours.cost_per_step, plan.terms.currency)
    return f"S = {ours.staleness}: {words.counted(len(ours.choice.chosen), 'machine')}, {cost} a training step"


def _subtitle(plan: Plan) -> str:
    timings = plan.terms.setting.timings
    told = (
        f"T_train {timings.train_s:.5g} s for R = {timings.rollouts:,} rollouts, T_bcast {timings.broadcast_s:.4g} s, "
        f"T_gen {timings.generation_s:.4g} s"
    )
    paper = plan.papers.get(plan.terms.staleness)
    if paper is None or not isinstance(plan.asked.ours, Outcome):
        return told
    cost = words.money(paper.cost_per_step, plan.terms.currency)
    return f"{told}; the paper's rule chooses {len(paper.choice.chosen)} machines, {cost} a step"


def _plot(plan: Plan, title: str, unit: str, value: Callable[[Outcome], float]) -> Plot:
    """Return the plot of one number over all windows, with a line for each rule."""
    ours = [(w.staleness, w.ours) for w in plan.windows if isinstance(w.ours, Outcome)]
    papers = list(plan.papers.items())
    lines = (
        ("the paper's rule and choice", Look.ORANGE, papers),
        ("our rule, the cheapest set", Look.BLUE, [one for one in ours if one[0] > 0]),
        ("taking turns (S = 0)", Look.GREEN, [one for one in ours if one[0] == 0]),
        ("all machines, which are too few", Look.GREY, [(w.staleness, w.everyone) for w in plan.windows]),
    )
    return Plot(
        key=title,
        title=title,
        unit=unit,
        said="",
        across="staleness window S (training steps)",
        lines=tuple(
            Line(name=name, points=tuple((float(s), value(one)) for s, one in points if one), look=look, markers=True)
            for name, look, points in lines
        ),
    )
