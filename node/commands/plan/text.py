"""Show a plan in words and tables that fit 100 columns, for a terminal and for a file.

Pure: it turns a plan into a string. The order is: the measurements of a recorded run, the answer in a few lines, the
machines, every window, what changes would do, and ECHO-2's rule if requested. Only names of machines are ever cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.box import Box
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.text import Text

from learner.provisioning.model.what_if import Change
from learner.provisioning.model.windows import Infeasible, Outcome, Window
from node.commands.plan import echo2_text
from node.commands.plan.answer_text import TOO_FEW, answer, given, notes
from node.commands.plan.measured_run_text import estimates, judged, peers
from node.commands.plan.plan import Plan
from node.commands.plan.pool import KIND_CHARS, KINDS_LISTED
from node.reports.text.tables import DASHES, FILE_WIDTH, SCREEN, drawn, pairs, table, titled
from node.runtime import formatting as words


def as_terminal(plan: Plan, *, width: int, color: bool = True) -> str:
    """Return the plan for a terminal of `width` columns, with escape sequences if `color`.

    Tables have at least FILE_WIDTH columns: a terminal that wraps their lines is better than numbers cut short.
    """
    return drawn(_parts(plan, SCREEN, width), max(width, FILE_WIDTH), color=color)


def as_text(plan: Plan) -> str:
    """Return the plan without colours or line drawing, for files and pipes."""
    return drawn(_parts(plan, DASHES, FILE_WIDTH), FILE_WIDTH)


def _parts(plan: Plan, box: Box, width: int) -> Iterator[RenderableType]:
    staleness = plan.terms.staleness
    if (measured := plan.measured) is not None:
        yield titled(f"Measured in {measured.source}", Constrain(pairs(judged(measured)), width - 1))
        yield titled("Estimates, with 95 % confidence intervals", estimates(measured, box))
        yield titled(f"Peers that were connected at step {measured.step}", peers(plan, measured, box))
    yield titled(
        f"Plan for the staleness window S = {staleness}", Constrain(pairs([*given(plan), *answer(plan)]), width - 1)
    )
    yield titled("Machines, and how many of each are chosen", machines(plan, box))
    yield titled("Every staleness window", windows(plan, box))
    if plan.changes:
        yield titled(f"What a change would do, at S = {staleness}", changes(plan, box))
    if (comparison := plan.comparison) is not None:
        told = echo2_text.in_words(plan, comparison)
        yield titled(f"ECHO-2's rule, at S = {staleness}", Constrain(pairs(told), width - 1))
        yield titled("Every staleness window: our rule, and the paper's", echo2_text.windows(plan, comparison, box))
    for note in notes(plan):
        yield Constrain(Padding(Text(note), (0, 0, 1, 1)), width)


def machines(plan: Plan, box: Box) -> RenderableType:
    """Return a row for each kind, the best price per rollout first: how many there are, and how many are chosen."""
    currency, setting = plan.terms.currency, plan.terms.setting
    ours = plan.asked.ours
    counts = plan.kinds(ours.choice) if isinstance(ours, Outcome) else None
    first = {plan.terms.kinds[one.name]: one for one in reversed(setting.candidates)}
    ranked = sorted(first.items(), key=lambda item: (item[1].rho, item[0]))
    if len(ranked) > KINDS_LISTED:
        ranked = [item for item in ranked if item[0] in (counts or ())][:KINDS_LISTED]
    rows = []
    for name, one in ranked:
        chosen = words.NOTHING if counts is None else str(counts[name])
        rows.append(
            [words.plain_name(name, KIND_CHARS), str(plan.pool[name]), chosen, words.money(one.running_price, ""),
             words.rate(one.usable_rate), words.money(1000 * one.rho, "") if math.isfinite(one.rho) else words.NOTHING,
             words.whole_figure(one.broadcast_s), words.whole_figure(one.generation_s)]
        )  # fmt: skip
    headings = ["machine", "in\npool", "chosen", f"{currency}\nan hour", "rollouts\nper s",
                f"{currency} per\n1000 rollouts", "T_bcast\ns", "T_gen\ns"]  # fmt: skip
    drawn = table(headings, rows, box)
    left = len(first) - len(rows)
    return Group(drawn, Text(f"{left} more kinds are left out", style="dim")) if left else drawn


def windows(plan: Plan, box: Box) -> RenderableType:
    """Return a row for each S."""
    hour, step = (f"{plan.terms.currency}\n{per}" for per in ("an hour", "a step"))
    headings = ["S", "kappa", "target\nx R/T", "machines", hour, step, "bubble", "lag"]
    return table(headings, [_window(plan, window) for window in plan.windows], box, first_left=False)


def _window(plan: Plan, window: Window) -> list[str]:
    mark = ">" if window.staleness == plan.terms.staleness else ""
    # The row is about the chosen machines, or about all machines if they are too few.
    ours = window.ours if isinstance(window.ours, Outcome) else window.everyone
    if ours is None:
        return [f"{mark}{window.staleness}", words.NOTHING, words.NOTHING, TOO_FEW, *[words.NOTHING] * 4]
    over = words.ratio(ours.over_balance) if ours.staleness else words.NOTHING
    machines = TOO_FEW if ours is window.everyone else str(len(ours.choice.chosen))
    return [
        f"{mark}{window.staleness}", str(ours.kappa), over, machines, words.money(ours.price, ""),
        words.money(ours.cost_per_step, ""), words.share(ours.bubble), f"{ours.lag:.1f}",
    ]  # fmt: skip


def changes(plan: Plan, box: Box) -> RenderableType:
    """Return a row for each change, for a plan that has some."""
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
        words.money(outcome.cost_per_step, ""), "" if outcome is planned else words.signed_money(more, ""),
        words.share(outcome.bubble), f"{outcome.lag:.1f}",
    ]  # fmt: skip
