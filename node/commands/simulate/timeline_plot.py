"""Draw `timeline.png`: what each machine did when, over the last training steps of a simulation.

One picture, 1200 pixels wide: a row for the learner's training, one for the version that its source sends, and one for
each machine. All that belongs to a policy version has its colour: the training step that makes it, its broadcast, and
the rollouts made with it. So the lag is how far to the right of its broadcast a colour still appears. White is waiting;
a thin grey line is a machine that is on standby or away.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from learner.simulation.trace import LEARNER, SOURCE, Span
from node.commands.simulate.json_export import mode_of
from node.commands.simulate.result import Story
from node.reports.model.time_words import trains
from node.reports.plots.png import INK, SIZE_IN, draw_heading, draw_png, draw_rows
from node.runtime import formatting as words
from node.runtime.atomic_files import writing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS_SHOWN = 12
"""Training steps in the picture: more would make bars too short to be told apart."""

MOST_MACHINES = 38
"""Rows of machines that can be read one below the other."""

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
"""Colours by Okabe and Ito. When a colour comes again, the version that had it before is long used up."""

ROW_IN, FRAME_IN = 0.17, 2.1
"""Height of a row, and of everything around the rows, in inches."""

NAME_CHARS = 22

TITLE_CHARS = 60
"""Most characters of what was asked; with the result behind it, it is as wide as the picture."""

NUMBERED = 0.014
"""Fraction of the picture's width in which a number of two digits fits."""

LEGEND = "colour: a version; box: a batch; white: waiting or installing; grey line: on standby or away"


def draw_timeline(story: Story, currency: str, path: Path) -> None:
    """Write the picture of `story` to `path` as PNG, whole or not at all. Raises RunError."""
    window = stretch(story)
    spans = [span for span in story.outcome.spans if span.until_s > window[0] and span.from_s < window[1]]
    rows = chosen_rows(story, spans)
    height = max(4.0, FRAME_IN + ROW_IN * (len(rows) + 3))
    with writing(path, "--picture"):
        draw_png(path, lambda figure: _draw(figure, story, currency, rows, spans, window), size_in=(SIZE_IN[0], height))


def stretch(story: Story) -> tuple[float, float]:
    """Return the shown time from start to end: the last STEPS_SHOWN training steps, or all if there are no more."""
    trained = [span for span in story.outcome.spans if span.row == LEARNER]
    if not trained:
        return 0.0, max(story.outcome.ended_s, 1.0)
    shown = trained[-STEPS_SHOWN:]
    from_s = 0.0 if len(trained) == len(shown) else shown[0].from_s
    return from_s, max(shown[-1].until_s, from_s + 1.0)


def chosen_rows(story: Story, spans: Sequence[Span]) -> list[str]:
    """Return the machines that are shown, in their order: all of them, or an even selection of those that worked."""
    shown = [one.name for one in story.scene.machines]
    if len(shown) > MOST_MACHINES:
        worked = {span.row for span in spans if span.works}
        shown = [name for name in shown if name in worked] or shown
    number = min(len(shown), MOST_MACHINES)
    return [shown[index * len(shown) // number] for index in range(number)]


def colour_of(version: int, published: Sequence[int]) -> str:
    """Return the colour of the first published version that contains this one."""
    return COLOURS[bisect_left(published, version) % len(COLOURS)]


def _draw(
    figure: Figure,
    story: Story,
    currency: str,
    rows: Sequence[str],
    spans: Sequence[Span],
    window: tuple[float, float],
) -> None:
    height = figure.get_size_inches()[1]
    draw_heading(figure, _title(story), f"{_subtitle(story, currency, len(rows))}\n{LEGEND}")
    figure.subplots_adjust(left=0.17, right=0.985, top=1 - 1.15 / height, bottom=0.6 / height)
    axes = figure.add_subplot()
    places = {LEARNER: 0.0, SOURCE: 1.2} | {name: 2.8 + number for number, name in enumerate(rows)}
    labels = ["learner: training", "learner: sending", *(words.plain_name(name, NAME_CHARS) for name in rows)]
    draw_rows(axes, list(zip(places.values(), labels, strict=True)))
    axes.set_xlim(*window)
    axes.set_xlabel("seconds since the start", fontsize=11, color=INK)
    published = sorted({span.version for span in story.outcome.spans if span.works and span.row != LEARNER})
    for span in spans:
        if (place := places.get(span.row)) is None:
            continue
        start, end = max(span.from_s, window[0]), min(span.until_s, window[1])
        axes.barh(
            place, end - start, left=start, height=0.8 if span.works else 0.12, edgecolor="white", linewidth=0.4,
            color=colour_of(span.version, published) if span.works else "#BBBBBB",
            zorder=3 if span.works else 2,  # a deactivated machine finishes its batch: the box is drawn over the line
        )  # fmt: skip
        if span.row in (LEARNER, SOURCE) and end - start > NUMBERED * (window[1] - window[0]):
            axes.text((start + end) / 2, place, str(span.version), ha="center", va="center", fontsize=8, color="white",
                      zorder=4)  # fmt: skip


def _title(story: Story) -> str:
    steps = story.steps
    busy = f"the learner {trains(steps.time)}" if steps.count else "no training step"
    asked = words.plain_name(story.asked.name, TITLE_CHARS)
    return f"{asked[:1].upper()}{asked[1:]}: {busy}"


def _subtitle(story: Story, currency: str, shown: int) -> str:
    learning, some = story.scene.learning, ""
    if shown < len(story.scene.machines):
        some = f"; {shown} of {len(story.scene.machines):,} machines shown"
    cost = f", {words.money(story.price, currency)} an hour in the end"
    lag = f"mean lag {story.steps.lag:.1f}"
    return f"{mode_of(story)}, S = {learning.staleness}, kappa = {story.kappa}, {lag}{cost}{some}"
