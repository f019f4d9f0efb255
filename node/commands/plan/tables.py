"""The tables of a plan: machines, windows, changes.

Pure. What always holds: each fits 100 columns, and no cell is cut but a machine's name.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from rich.box import Box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from learner.provisioning.model.machine_selection import Candidate
from learner.provisioning.model.outcome import Infeasible, Outcome, Window
from learner.provisioning.model.what_if import Change
from node.commands.plan import number_text as numbers
from node.commands.plan.plan import Plan
from node.runtime import formatting as words

KIND_CHARS = 24
"""Of a machine's name: the columns beside it take the rest of 100."""

KINDS_LISTED = 40
"""Rows of the table of machines; those that nobody chose are left out first."""

TOO_FEW = "too few"


def machines(plan: Plan, box: Box) -> RenderableType:
    """A row for each kind, the best price per rollout first: how many there are, and how many are chosen."""
    currency, setting = plan.terms.currency, plan.terms.setting
    ours = plan.asked.ours
    counts = plan.kinds(ours.choice) if isinstance(ours, Outcome) else None
    first = {plan.terms.kinds[one.name]: one for one in reversed(setting.candidates)}
    ranked = sorted(first.items(), key=lambda item: (item[1].rho, item[0]))
    rows = []
    for name, one in _listed(ranked, counts or ()):
        chosen = words.NOTHING if counts is None else str(counts[name])
        rows.append(
            [words.plain_name(name, KIND_CHARS), str(plan.pool[name]), chosen, words.money(one.running_price, ""),
             words.rate(one.usable_rate), words.money(1000 * one.rho, "") if math.isfinite(one.rho) else words.NOTHING,
             numbers.figure(one.broadcast_s), numbers.figure(one.generation_s)]
        )  # fmt: skip
    headings = ["machine", "in\npool", "chosen", f"{currency}\nan hour", "rollouts\nper s",
                f"{currency} per\n1000 rollouts", "T_bcast\ns", "T_gen\ns"]  # fmt: skip
    drawn = table(headings, rows, box)
    left = len(first) - len(rows)
    return Group(drawn, Text(f"and {left} more kinds, left out", style="dim")) if left else drawn


def _listed(ranked: Sequence[tuple[str, Candidate]], wanted: Collection[str]) -> list[tuple[str, Candidate]]:
    if len(ranked) <= KINDS_LISTED:
        return list(ranked)
    return [item for item in ranked if item[0] in wanted][:KINDS_LISTED]


def windows(plan: Plan, box: Box) -> RenderableType:
    """A row for each S."""
    hour, step = (f"{plan.terms.currency}\n{per}" for per in ("an hour", "a step"))
    headings = ["S", "kappa", "asked\nx R/T", "machines", hour, step, "bubble", "lag"]
    return table(headings, [_window(plan, window) for window in plan.windows], box, first_left=False)


def _window(plan: Plan, window: Window) -> list[str]:
    mark = ">" if window.staleness == plan.terms.staleness else ""
    # Of what is chosen; of all machines where they are too few.
    ours = window.ours if isinstance(window.ours, Outcome) else window.everyone
    if ours is None:
        return [f"{mark}{window.staleness}", words.NOTHING, words.NOTHING, TOO_FEW, *[words.NOTHING] * 4]
    over = numbers.over(ours.over_balance) if ours.staleness else words.NOTHING
    machines = TOO_FEW if ours is window.everyone else str(len(ours.choice.chosen))
    return [
        f"{mark}{window.staleness}", str(ours.kappa), over, machines, words.money(ours.price, ""),
        words.money(ours.cost_per_step, ""), words.share(numbers.nil(ours.bubble)), f"{ours.lag:.1f}",
    ]  # fmt: skip


def changes(plan: Plan, box: Box) -> RenderableType:
    """A row for each change; for a plan that has some."""
    planned, currency = plan.asked.ours, plan.terms.currency
    assert isinstance(planned, Outcome)
    rows = [_change_cells("as planned", planned, planned)]
    rows += [_change_cells(_named(plan, change), change.outcome, planned) for change in plan.changes]
    headings = ["", "kappa", "machines", f"{currency}\nan hour", f"{currency}\na step", "more\na step", "bubble", "lag"]
    return table(headings, rows, box)


def _named(plan: Plan, change: Change) -> str:
    kind = words.plain_name(plan.terms.kinds.get(change.machine, ""), KIND_CHARS)
    return f"{change.what}: {kind}" if kind else change.what


def _change_cells(name: str, outcome: Outcome | Infeasible, planned: Outcome) -> list[str]:
    if isinstance(outcome, Infeasible):
        return [name, words.NOTHING, TOO_FEW, *[words.NOTHING] * 5]
    more = outcome.cost_per_step - planned.cost_per_step
    return [
        name, str(outcome.kappa), str(len(outcome.choice.chosen)), words.money(outcome.price, ""),
        words.money(outcome.cost_per_step, ""), "" if outcome is planned else numbers.signed(more, ""),
        words.share(numbers.nil(outcome.bubble)), f"{outcome.lag:.1f}",
    ]  # fmt: skip


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    box: Box,
    *,
    first_left: bool = True,
    wrap_last: bool = False,
) -> Table:
    """Figures that are never squeezed: where a table is too wide, names in its first column are broken, and sentences
    in the last where it is to `wrap`. Headings have one line or two, and stand on the line below them."""
    drawn = Table(box=box, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, header_style="dim")
    for number, heading in enumerate(headings):
        on_two = heading if "\n" in heading else f"\n{heading}"
        wraps = wrap_last and number == len(headings) - 1
        is_name = number == 0 and first_left
        drawn.add_column(
            on_two, justify="left" if wraps or is_name else "right", no_wrap=not (wraps or is_name), overflow="fold"
        )
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    return drawn
