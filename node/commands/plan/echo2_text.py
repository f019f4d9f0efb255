"""Show ECHO-2's rule as printed (arXiv 2602.02192) beside ours, in a few lines and a table (`--compare-echo2`).

Pure.

Invariants:

- No other part of a plan depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.box import Box
from rich.table import Table

from learner.provisioning.model.echo2 import GAMMA, Comparison, PaperWindow, explain_infeasible
from learner.provisioning.model.windows import Outcome, Window
from node.commands.plan.answer_text import TOO_FEW, together
from node.commands.plan.plan import Plan
from node.reports.text.tables import table
from node.runtime import formatting as words

NOTHING_SAVED = 0.005
"""Units of money per hour below which two sets cost the same."""


def in_words(plan: Plan, comparison: Comparison) -> Iterator[tuple[str, str]]:
    """Yield, for the requested window, our rule with the paper's way to choose, and the paper's whole rule."""
    ours, currency = plan.asked.ours, plan.terms.currency
    if isinstance(ours, Outcome) and comparison.greedy is not None:
        yield "greedy", f"chosen by price per rollout alone: {_greedily(ours, comparison.greedy, currency)}"
        yield "", _set(plan, comparison.greedy)
    if (paper := comparison.windows[plan.terms.staleness]) is not None:
        yield "paper's rule", _rule(plan, paper)
        if paper.outcome is not None:
            yield "", _set(plan, paper.outcome)
            if isinstance(ours, Outcome):
                yield "", _difference(ours, paper.outcome, currency)


def _set(plan: Plan, outcome: Outcome) -> str:
    return " + ".join(f"{count} x {name}" for name, count in plan.kinds(outcome.choice).items())


def _greedily(ours: Outcome, greedy: Outcome, currency: str) -> str:
    dearer = greedy.choice.price - ours.choice.price
    same = "the same price" if abs(dearer) < NOTHING_SAVED else f"{words.signed_money(dearer, currency)} an hour"
    return f"{words.counted(len(greedy.choice.chosen), 'machine')}, {same}"


def _rule(plan: Plan, paper: PaperWindow) -> str:
    if paper.kappa is None:
        return explain_infeasible(plan.terms.setting.timings, paper.staleness)
    if not math.isfinite(paper.mu_min):
        return f"equation (2) has no solution for kappa = {paper.kappa}: kappa T_train is less than T_bcast + T_gen"
    over = paper.mu_min / plan.terms.setting.balance
    least = f"mu_min = {words.per_second(paper.mu_min)} ({words.ratio(over)} x R / T_train)"
    rule = f"kappa = {paper.kappa}, {least}, times {GAMMA:g}"
    if paper.outcome is None:
        return f"{rule}: more than {together(plan)}"
    bought = words.counted(len(paper.outcome.choice.chosen), "machine")
    return f"{rule}: {bought}, lag at most {paper.outcome.lag_bound} by equation (12)"


def _difference(ours: Outcome, paper: Outcome, currency: str) -> str:
    """Return how the paper's rule differs from ours in machines, capacity and cost."""
    more, dearer = len(paper.choice.chosen) - len(ours.choice.chosen), paper.choice.price - ours.choice.price
    if more == 0 and abs(dearer) < NOTHING_SAVED:
        return "It chooses the same amount."
    machines = f"{words.counted(abs(more), 'machine')} {_more(more)}" if more else "as many machines"
    capacity = paper.choice.rate / ours.choice.rate - 1
    share = f", {abs(capacity):.0%} {_more(capacity)} capacity" if abs(capacity) >= NOTHING_SAVED else ""
    step = words.signed_money(paper.cost_per_step - ours.cost_per_step, currency)
    return f"It chooses {machines}{share}: {words.signed_money(dearer, currency)} an hour, {step} a step."


def _more(number: float) -> str:
    return "more" if number > 0 else "less"


def windows(plan: Plan, comparison: Comparison, box: Box) -> Table:
    """Return a row for each S, ours and the paper's. Our model judges both; the last column is the paper's claim."""
    step = f"{plan.terms.currency}\na step"
    bought = ["target\nx R/T", "machines", step]
    headings = ["S", *bought, "paper\nkappa", *bought, "lag\n(12)"]
    rows = [
        [f"{window.staleness}", *_our_cells(window), *_paper_cells(plan, paper)]
        for window, paper in zip(plan.windows, comparison.windows, strict=True)
    ]
    return table(headings, rows, box, first_left=False)


def _our_cells(window: Window) -> list[str]:
    ours = window.ours
    if not isinstance(ours, Outcome):
        return [words.NOTHING, TOO_FEW, words.NOTHING]
    over = words.ratio(ours.over_balance) if ours.staleness else words.NOTHING
    return [over, str(len(ours.choice.chosen)), words.money(ours.cost_per_step, "")]


def _paper_cells(plan: Plan, paper: PaperWindow | None) -> list[str]:
    if paper is None or paper.kappa is None:
        return [words.NOTHING] * 5
    over = words.ratio(paper.mu_min / plan.terms.setting.balance)
    if (outcome := paper.outcome) is None:
        return [str(paper.kappa), over, TOO_FEW, words.NOTHING, words.NOTHING]
    bought = str(len(outcome.choice.chosen))
    return [str(paper.kappa), over, bought, words.money(outcome.cost_per_step, ""), str(outcome.lag_bound)]
