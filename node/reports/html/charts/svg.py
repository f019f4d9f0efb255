"""Draw a plot as SVG, with a sentence about it and a table. Pure.

Invariants:

- The drawing has a title and a description, and a table of its points below it.
- Colours come from the page's style, so one drawing serves light and dark.
- A line with another colour also has other dashes or markers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from node.reports.charts.plot import Y_TICKS, Line, Look, Plot, Row
from node.reports.charts.scale import Point, TimeUnit, ticks, time_unit
from node.reports.html.charts.data_table import numbers, numbers_elsewhere, time_title
from node.reports.html.charts.markup import Attribute, Child, Fragment, num, tag

BAR_LABELS = 14
"""Labels that fit below the bars of a small plot."""

LABEL_WIDTH = 62.0
"""Width that a number below the time axis needs."""

ROW_HEIGHT = 17.0
MARKS_DRAWN = 60
"""Ticks along a plot: more would look like a line, so then every k-th is drawn."""

MARK_WIDTH = 105.0
"""Width that the name of a mark needs; if marks are closer, only one of them is named."""

MARKED = 40
"""Markers of a line: more would touch each other, so then every k-th point has one. The ends always have one."""

LEFT, RIGHT, TOP, BOTTOM = 46.0, 12.0, 22.0, 34.0
"""Room around a plot: for numbers, and for the unit above them."""


Size = tuple[float, float]
"""Width and height of a drawing, in its own pixels; a page shows it as wide as there is room."""

SMALL = (400, 236)
"""On a phone it is shown at about this size, so that its text can be read there."""

WIDE = (960, 320)
STRIP = (960, 200)
"""Nearly as wide as a page on a desk; the second is for plots with one line."""


def figure(plot: Plot, *, wide: Size | None = None, with_numbers: bool = True) -> Fragment:
    """Return the plot with its heading, sentence, legend, drawing and table. With `wide` it is drawn twice, and a page
    shows the one that fits. Without `with_numbers` there is a link in place of the table, for a page that is served.
    """
    drawings = [drawn(plot, SMALL, variant="narrow" if wide else "")]
    if wide is not None:
        drawings.append(drawn(plot, wide, variant="wide"))
    return tag(
        "figure",
        tag("figcaption", tag("h3", plot.title), tag("p", plot.said)),
        _legend(plot),
        drawings,
        numbers(plot) if with_numbers else numbers_elsewhere(plot),
        class_="plot",
    )


def drawn(plot: Plot, size: Size, *, variant: str = "") -> Fragment:
    """Return the drawing alone."""
    frame = _Frame.of(plot, size)
    name = f"{plot.key}-{variant}" if variant else plot.key
    return tag(
        "svg",
        tag("title", plot.title, id=f"{name}-title"),
        tag("desc", plot.said, id=f"{name}-desc"),
        list(_background(plot, frame)),
        [_line(line, frame) for line in plot.lines],
        list(_bars(plot, frame)),
        list(_axes(plot, frame)),
        list(_rows(plot.rows, frame)),
        viewBox=f"0 0 {num(size[0])} {num(size[1])}",
        role="img",
        aria_labelledby=f"{name}-title",
        aria_describedby=f"{name}-desc",
        class_=variant or None,
        **({} if plot.bars else frame.scale()),
    )


@dataclass(frozen=True, kw_only=True)
class _Frame:
    """The place of the plot itself, and the ranges of its axes."""

    left: float
    right: float
    top: float
    bottom: float
    wall: float
    low: float
    high: float
    unit: TimeUnit

    @classmethod
    def of(cls, plot: Plot, size: Size) -> _Frame:
        low, high = plot.ends
        return cls(
            left=LEFT,
            right=size[0] - RIGHT,
            top=TOP + (ROW_HEIGHT * len(plot.rows) + 6 if plot.rows else 0),
            bottom=size[1] - BOTTOM,
            wall=plot.wall if plot.wall > 0 else 1.0,
            low=low,
            high=high,
            unit=time_unit(plot.wall),
        )

    def scale(self) -> dict[str, Attribute]:
        """Return what the script needs to find the values below the pointer."""
        wall = self.wall / self.unit.seconds
        return {
            "data_left": self.left, "data_right": self.right, "data_top": self.top, "data_bottom": self.bottom,
            "data_wall": f"{wall:.12g}", "data_unit": self.unit.name,
        }  # fmt: skip

    def x(self, at: float) -> float:
        share = min(max(at / self.wall, 0.0), 1.0)
        return self.left + share * (self.right - self.left)

    def y(self, value: float) -> float:
        share = min(max((value - self.low) / (self.high - self.low), 0.0), 1.0)
        return self.bottom - share * (self.bottom - self.top)


def _background(plot: Plot, frame: _Frame) -> Iterator[Fragment]:
    for band in plot.bands:
        left = frame.x(band.began)
        yield tag(
            "rect",
            x=left,
            y=frame.top,
            width=max(2.0, frame.x(band.ended) - left),
            height=frame.bottom - frame.top,
            class_="band",
        )
    for value in ticks(frame.low, frame.high, Y_TICKS):
        yield tag("line", x1=frame.left, x2=frame.right, y1=frame.y(value), y2=frame.y(value), class_="grid")
    every = max(1, -(-len(plot.marks) // MARKS_DRAWN))
    for mark in [mark for mark in plot.marks if not mark.name][::every]:
        x = frame.x(mark.at)
        yield tag("line", x1=x, x2=x, y1=frame.top, y2=frame.top + 5, class_="tick")
    for x in (frame.x(mark.at) for mark in plot.marks if mark.name):
        yield tag("line", x1=x, x2=x, y1=frame.top, y2=frame.bottom, class_="mark")


def _mark_names(plot: Plot, frame: _Frame) -> Iterator[Fragment]:
    """Yield the names of the marks, which stand on the curves, as far as they have room beside each other."""
    free = frame.left
    for mark in plot.marks:
        x = frame.x(mark.at)
        if mark.name and x >= free:
            fits = x + MARK_WIDTH <= frame.right
            yield _text(mark.name, x + 4 if fits else x - 4, frame.bottom - 6, "start" if fits else "end", "note")
            free = x + MARK_WIDTH


def _line(line: Line, frame: _Frame) -> Child:
    """Return the curve, the area below it, and its markers."""
    points = [(frame.x(at), frame.y(value)) for at, value in line.points]
    if not points:
        return None
    path = _steps(points, frame) if line.steps else points
    run = "L".join(f"{num(x)} {num(y)}" for x, y in path)
    look = line.look.value
    parts: list[Fragment] = []
    if line.area:
        floor = num(frame.bottom)
        closed = f"M{num(path[0][0])} {floor}L{run}L{num(path[-1][0])} {floor}Z"
        parts.append(tag("path", d=closed, class_=f"area {look}"))
    parts.append(tag("path", d=f"M{run}", class_=f"line {look} quiet" if line.quiet else f"line {look}"))
    if line.markers:
        every = max(1, -(-len(points) // MARKED))
        shown = points[::every] if points[::every][-1] == points[-1] else [*points[::every], points[-1]]
        parts += [marker(line.look, x, y) for x, y in shown]
    elif len(points) == 1:
        parts.append(marker(line.look, *points[0]))
    return parts


def _steps(points: Sequence[Point], frame: _Frame) -> list[Point]:
    """Return a path that keeps each value until the next one, and the last to the end of the plot."""
    path: list[Point] = []
    for (x, y), (until, _) in zip(points, [*points[1:], (frame.right, 0.0)], strict=True):
        path += [(x, y), (until, y)]
    return path


def marker(look: Look, x: float, y: float) -> Fragment:
    """Return the marker of a line: a shape for each colour."""
    match look:
        case Look.ORANGE:
            return tag("rect", x=x - 3.2, y=y - 3.2, width=6.4, height=6.4, class_="marker orange")
        case Look.GREEN:
            corners = f"{num(x)},{num(y - 4.2)} {num(x + 4)},{num(y + 3)} {num(x - 4)},{num(y + 3)}"
            return tag("polygon", points=corners, class_="marker green")
        case Look.PURPLE:
            corners = f"{num(x)},{num(y - 4.4)} {num(x + 4.4)},{num(y)} {num(x)},{num(y + 4.4)} {num(x - 4.4)},{num(y)}"
            return tag("polygon", points=corners, class_="marker purple")
        case _:
            return tag("circle", cx=x, cy=y, r=3.4, class_=f"marker {look.value}")


def _bars(plot: Plot, frame: _Frame) -> Iterator[Fragment]:
    if not plot.bars:
        return
    slot = (frame.right - frame.left) / len(plot.bars)
    every = -(-len(plot.bars) // BAR_LABELS)
    for number, bar in enumerate(plot.bars):
        width = min(0.72 * slot, 48.0)
        middle = frame.left + (number + 0.5) * slot
        top = frame.y(bar.value)
        yield tag(
            "rect", x=middle - width / 2, y=top, width=width, height=max(0.0, frame.bottom - top), class_="bar green"
        )
        if number % every == 0 or number == len(plot.bars) - 1:
            yield _text(bar.label, middle, frame.bottom + 14, "middle")
        if slot >= 30:
            yield _text(plot.show(bar.value), middle, top - 4, "middle", "value")


def _axes(plot: Plot, frame: _Frame) -> Iterator[Fragment]:
    """Yield the lower axis, the numbers of both axes, and their units."""
    yield tag("line", x1=frame.left, x2=frame.right, y1=frame.bottom, y2=frame.bottom, class_="axis")
    for value in ticks(frame.low, frame.high, Y_TICKS):
        yield _text(plot.show(value), frame.left - 6, frame.y(value) + 4, "end")
    yield _text(plot.unit, 2, frame.top - 10, "start", "unit")
    yield from _mark_names(plot, frame)
    if plot.limit is not None:
        value, name = plot.limit
        yield tag("line", x1=frame.left, x2=frame.right, y1=frame.y(value), y2=frame.y(value), class_="limit")
        yield _text(name, frame.right, frame.y(value) - 4, "end", "value")
    if plot.bars:
        yield _text(plot.across, (frame.left + frame.right) / 2, frame.bottom + 29, "middle", "unit")
        return
    wall = frame.wall / frame.unit.seconds
    most = max(2, int((frame.right - frame.left) / LABEL_WIDTH))
    for tick in ticks(0.0, wall, most):
        x = frame.x(tick * frame.unit.seconds)
        yield tag("line", x1=x, x2=x, y1=frame.bottom, y2=frame.bottom + 4, class_="axis")
        yield _text(f"{tick:g}", x, frame.bottom + 16, "middle")
    yield _text(time_title(frame.unit), frame.right, frame.bottom + 30, "end", "unit")


def _rows(rows: Sequence[Row], frame: _Frame) -> Iterator[Fragment]:
    for number, row in enumerate(rows):
        y = 4 + ROW_HEIGHT * number
        yield _text(row.name, frame.left - 6, y + 10, "end")
        boxes = [_box(frame, began, ended, y, ROW_HEIGHT - 7) for began, ended in row.spans]
        if boxes:
            yield tag("path", d="".join(boxes), class_=f"bar {row.look.value}")


def _box(frame: _Frame, began: float, ended: float, y: float, height: float) -> str:
    """Return a stretch of time as a part of a path, wide enough to be seen."""
    left = frame.x(began)
    width = max(1.5, frame.x(ended) - left)
    return f"M{num(left)} {num(y)}h{num(width)}v{num(height)}h{num(-width)}z"


def _text(content: str, x: float, y: float, anchor: str, kind: str = "") -> Fragment:
    return tag("text", content, x=x, y=y, text_anchor=anchor, class_=kind or None)


def _legend(plot: Plot) -> Fragment | None:
    """Return the names of the lines if there are several, and of the bands."""
    named = [line for line in plot.lines if line.points and not line.quiet]
    entries = [tag("li", _swatch(line), " ", line.name) for line in named] if len(named) > 1 else []
    if plot.bands and plot.band:
        sign = tag("svg", tag("rect", x=0, y=0, width=26, height=12, class_="band"), **_SIGN)
        entries.append(tag("li", sign, " ", plot.band))
    return tag("ul", entries, class_="legend") if entries else None


_SIGN: dict[str, str] = {"viewBox": "0 0 26 12", "class_": "sign", "aria_hidden": "true"}


def _swatch(line: Line) -> Fragment:
    look = line.look.value
    sign = marker(line.look, 13, 6) if line.markers else None
    return tag("svg", tag("path", d="M0 6L26 6", class_=f"line {look}"), sign, **_SIGN)
