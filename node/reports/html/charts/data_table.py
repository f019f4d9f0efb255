"""Make tables, and a plot as a table: all points of its curves, or its bars, behind a disclosure. Pure.

Invariants:

- Everything that is drawn can be read as numbers with their units, by people who do not see it and by the script.
- A table is in a region that scrolls by itself, so that no page is wider than its screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from node.reports.charts.plot import Plot
from node.reports.charts.scale import TimeUnit, time_unit
from node.reports.html.charts.markup import Child, Fragment, tag
from node.runtime.formatting import duration

Rows = Iterable[Sequence[Child]]

SPANS_LISTED = 60
"""Stretches of each row in the table, the latest; of more, the drawing gives a better picture."""


def time_title(unit: TimeUnit) -> str:
    """Return the label of a time axis and of a column of times."""
    return f"time since the start ({unit.name})"


def numbers(plot: Plot) -> Fragment:
    """Return everything that the plot shows as numbers, behind a disclosure; the script also reads values there."""
    return tag("details", tag("summary", f"{plot.title}, in numbers"), values(plot), class_="numbers")


def values(plot: Plot) -> Fragment:
    """Return the same without the disclosure."""
    title = f"{plot.title}, in numbers"
    return scrolling(title, _values(plot, title), _stretches(plot))


def numbers_elsewhere(plot: Plot) -> Fragment:
    """Return the same disclosure with a link to the numbers, which the script follows when it is opened."""
    title = f"{plot.title}, in numbers"
    link = tag("a", "Open the numbers", href=f"numbers?plot={plot.key}")
    return tag("details", tag("summary", title), tag("p", link), class_="numbers", data_plot=plot.key)


def scrolling(name: str, *children: Child) -> Fragment:
    """Return content that may be wider than a page and then scrolls by itself, also by keyboard."""
    return tag("div", children, class_="scroll", role="region", aria_label=name, tabindex=0)


def table(caption: str, headings: Sequence[str], rows: Rows, *, foot: Sequence[Child] = (), kind: str = "") -> Fragment:
    """Return a table whose first cells name their rows; `foot` is the row below all."""
    return scrolling(caption, _table(caption, headings, rows, foot, kind))


def _table(caption: str, headings: Sequence[str], rows: Rows, foot: Sequence[Child] = (), kind: str = "") -> Fragment:
    return tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", [tag("th", heading, scope="col") for heading in headings])),
        tag("tbody", [_row(*row) for row in rows]),
        tag("tfoot", _row(*foot)) if foot else None,
        class_=kind or None,
    )


def _row(name: Child, *cells: Child) -> Fragment:
    return tag("tr", tag("th", name, scope="row"), [tag("td", cell) for cell in cells])


def _values(plot: Plot, title: str) -> Fragment:
    """Return a row for each bar, or for each point in time at which any line has one."""
    if plot.bars:
        return _table(title, [plot.across, plot.unit], [(bar.label, plot.exact(bar.value)) for bar in plot.bars])
    unit = time_unit(plot.wall)
    lines = [line for line in plot.lines if line.points]
    values = [dict(line.points) for line in lines]
    times = sorted({at for line in lines for at, _ in line.points})
    decimals = max(0, 3 - math.ceil(math.log10(max(plot.wall / unit.seconds, 1.0))))
    rows = [
        (f"{at / unit.seconds:.{decimals}f}", *(plot.exact(of[at]) if at in of else "" for of in values))
        for at in times
    ]
    return _table(title, [time_title(unit), *(f"{line.name} ({plot.unit})" for line in lines)], rows)


def _stretches(plot: Plot) -> Fragment | None:
    """Return the times of the stretches above the plot."""
    if not plot.rows:
        return None
    rows = [
        (row.name, duration(max(0.0, began)), duration(max(0.0, ended)))
        for row in plot.rows
        for began, ended in row.spans[-SPANS_LISTED:]
    ]
    more = any(len(row.spans) > SPANS_LISTED for row in plot.rows)
    caption = f"Stretches of time, the last {SPANS_LISTED} of each" if more else "Stretches of time"
    return _table(caption, ["what", "from", "to, since the start"], rows)
