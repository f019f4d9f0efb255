"""A plot as a table: all points of its curves, or its bars, behind a disclosure.

Pure. What always holds: what is drawn can be read as numbers, with their units, by whoever does not see the drawing and
by the script, which reads values off there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from node.reports.charts.plot import Plot
from node.reports.charts.scale import TimeUnit, time_unit
from node.reports.html.charts.markup import Child, Fragment, tag
from node.runtime.formatting import duration

SPANS_LISTED = 60
"""Of each row, in the table: who comes and goes more often than that is seen in the drawing."""


def time_title(unit: TimeUnit) -> str:
    """What stands below a time axis, and above a column of times."""
    return f"time since the start ({unit.name})"


def numbers(plot: Plot) -> Fragment:
    """All that the plot shows, in numbers, behind a disclosure: the script reads values off there, too."""
    title = f"{plot.title}, in numbers"
    return tag(
        "details",
        tag("summary", title),
        scrolling(title, _bar_table(plot, title) if plot.bars else _line_table(plot, title), _row_table(plot)),
        class_="numbers",
    )


def scrolling(name: str, *children: Child) -> Fragment:
    """What may be wider than a page, which then scrolls by itself, also by keyboard."""
    return tag("div", children, class_="scroll", role="region", aria_label=name, tabindex=0)


def _bar_table(plot: Plot, title: str) -> Fragment:
    rows = [tag("tr", tag("th", bar.label, scope="row"), tag("td", plot.exact(bar.value))) for bar in plot.bars]
    return _table(title, [plot.across, plot.unit], rows)


def _line_table(plot: Plot, title: str) -> Fragment:
    """A row for each point in time at which any line has one."""
    unit = time_unit(plot.wall)
    lines = [line for line in plot.lines if line.points]
    values = [dict(line.points) for line in lines]
    times = sorted({at for line in lines for at, _ in line.points})
    decimals = max(0, 3 - math.ceil(math.log10(max(plot.wall / unit.seconds, 1.0))))
    rows = [
        tag(
            "tr",
            tag("th", f"{at / unit.seconds:.{decimals}f}", scope="row"),
            [tag("td", plot.exact(of[at]) if at in of else "") for of in values],
        )
        for at in times
    ]
    return _table(title, [time_title(unit), *(f"{line.name} ({plot.unit})" for line in lines)], rows)


def _row_table(plot: Plot) -> Fragment | None:
    """When what is drawn above the plot was so."""
    if not plot.rows:
        return None
    rows = [
        tag(
            "tr",
            tag("th", row.name, scope="row"),
            tag("td", duration(max(0.0, began))),
            tag("td", duration(max(0.0, ended))),
        )
        for row in plot.rows
        for began, ended in row.spans[-SPANS_LISTED:]
    ]
    more = any(len(row.spans) > SPANS_LISTED for row in plot.rows)
    caption = f"Stretches of time, the last {SPANS_LISTED} of each" if more else "Stretches of time"
    return _table(caption, ["what", "from", "to, since the start"], rows)


def _table(caption: str, headings: Sequence[str], rows: Sequence[Fragment]) -> Fragment:
    return tag(
        "table",
        tag("caption", caption),
        tag("thead", tag("tr", [tag("th", heading, scope="col") for heading in headings])),
        tag("tbody", rows),
    )
