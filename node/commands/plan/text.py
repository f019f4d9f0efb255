"""A plan in words and tables that fit 100 columns, for a terminal and for a file.

Pure: a plan in, a string out. First the answer in a few lines, then the machines, every window, what would change, and
what a recorded run has shown.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from rich.box import SIMPLE_HEAD, Box
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from node.commands.plan import echo2_text
from node.commands.plan.answer_text import answer, given, notes
from node.commands.plan.measured_run_text import estimates, judged, peers
from node.commands.plan.plan import Plan
from node.commands.plan.tables import changes, machines, windows
from node.reports.text.tables import DASHES, FILE_WIDTH
from node.runtime.safe_console import HarmlessConsole


def as_terminal(plan: Plan, *, width: int, color: bool = True) -> str:
    """The plan for a terminal of `width` columns, with escape sequences where `color`."""
    return drawn(_parts(plan, SIMPLE_HEAD, width), width, color=color)


def as_text(plan: Plan) -> str:
    """The plan without colours or line drawing, for files and pipes."""
    return drawn(_parts(plan, DASHES, FILE_WIDTH), FILE_WIDTH, color=False)


def drawn(parts: Iterable[RenderableType], width: int, *, color: bool) -> str:
    """The parts, one below the other, without blanks at the ends of lines. Tables have FILE_WIDTH columns at least: a
    terminal breaks their lines, which is better than figures cut short."""
    out = io.StringIO()
    console = HarmlessConsole(
        file=out, width=max(width, FILE_WIDTH), force_terminal=color, color_system="standard" if color else None,
        highlight=False, emoji=False, markup=False, legacy_windows=False, safe_box=False,
    )  # fmt: skip
    console.print(Group(*parts))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _parts(plan: Plan, box: Box, width: int) -> Iterator[RenderableType]:
    staleness = plan.terms.staleness
    if (measured := plan.measured) is not None:
        yield section(f"Measured in {measured.source}", pairs(judged(measured), width))
        yield section("Estimates, with intervals of 95 %", estimates(measured, box))
        yield section(f"Peers that were here at step {measured.step}", peers(plan, measured, box))
    yield section(f"A plan for the window S = {staleness}", pairs([*given(plan), *answer(plan)], width))
    yield section("Machines, and how many of each are chosen", machines(plan, box))
    yield section("Every window", windows(plan, box))
    if plan.changes:
        yield section(f"What would change, at S = {staleness}", changes(plan, box))
    if (comparison := plan.comparison) is not None:
        yield section(f"ECHO-2's rule, at S = {staleness}", pairs(echo2_text.in_words(plan, comparison), width))
        yield section("Every window: ours, and the paper's rule", echo2_text.windows(plan, comparison, box))
    for note in notes(plan):
        yield Constrain(Padding(Text(note), (0, 0, 1, 1)), width)


def section(title: str, body: RenderableType) -> RenderableType:
    """With a heading, and a blank line below."""
    return Padding(Group(Text(title, style="bold"), body), (0, 0, 1, 1))


def pairs(told: Iterable[tuple[str, str]], width: int) -> RenderableType:
    """Names, and what is told of each, in `width` columns with the blank before."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in told:
        grid.add_row(Text(name, style="dim"), Text(value))
    return Constrain(grid, width - 1)
