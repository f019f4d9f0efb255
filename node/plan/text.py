"""A plan in words and tables that fit 100 columns, for a terminal and for a file.

Pure: a plan in, a string out. First the answer in a few lines, then the machines, every window, what would change, and
what a recorded run has shown.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from rich.box import SIMPLE_HEAD, Box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from node.plan.answer import answer, given, notes
from node.plan.evidence import estimates, judged, peers
from node.plan.plan import Plan
from node.plan.tables import changes, machines, windows
from node.reports.text import DASHES, FILE_WIDTH


def as_terminal(plan: Plan, *, width: int, color: bool = True) -> str:
    """The plan for a terminal of `width` columns, with escape sequences where `color`."""
    return _drawn(plan, width, SIMPLE_HEAD, color=color)


def as_text(plan: Plan, *, width: int = FILE_WIDTH) -> str:
    """The plan without colours or line drawing, for files and pipes."""
    return _drawn(plan, width, DASHES, color=False)


def _drawn(plan: Plan, width: int, box: Box, *, color: bool) -> str:
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=color, color_system="standard" if color else None, highlight=False,
        emoji=False, markup=False, legacy_windows=False, safe_box=False,
    )  # fmt: skip
    console.print(Group(*_parts(plan, box)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _parts(plan: Plan, box: Box) -> Iterator[RenderableType]:
    staleness = plan.terms.staleness
    if (measured := plan.measured) is not None:
        yield _section(f"Measured in {measured.source}", _pairs(judged(measured)))
        yield _section("Estimates, with intervals of 95 %", estimates(measured, box))
        yield _section("Peers that were here at the last step", peers(plan, measured, box))
    yield _section(f"A plan for the window S = {staleness}", _pairs([*given(plan), *answer(plan)]))
    yield _section("Machines, and how many of each are chosen", machines(plan, box))
    yield _section("Every window: ours, and the paper's rule", windows(plan, box))
    if plan.changes:
        yield _section(f"What would change, at S = {staleness}", changes(plan, box))
    for note in notes(plan):
        yield Padding(Text(note), (0, 0, 1, 1))


def _section(title: str, body: RenderableType) -> RenderableType:
    return Padding(Group(Text(title, style="bold"), body), (0, 0, 1, 1))


def _pairs(pairs: Iterable[tuple[str, str]]) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in pairs:
        grid.add_row(Text(name, style="dim"), Text(value))
    return grid
