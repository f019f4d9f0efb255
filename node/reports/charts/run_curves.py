"""Make the plots of a run: which there are, what each one shows, and a sentence about it. Pure.

Invariants:

- A plot is left out if the ledger does not hold its values.
- Infinity and NaN are not drawn.
- No curve has more than CURVE_POINTS points.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from learner.provisioning.estimation.learner_time import LearnerTime
from node.reports.charts.cost_curve import Costs
from node.reports.charts.learning_curve import reward, together
from node.reports.charts.plot import Bar, Line, Look, Plot, Row, bands, line, restarts, step_points
from node.reports.charts.scale import Point, mean, smoothed, thinned
from node.reports.model.history import BINS, FINEST, Bins, History, Judged, Span, joined
from node.reports.model.report import SwarmReport
from node.reports.model.time_words import trained
from node.runtime import formatting as words

MAX_LAGS = 24
"""Bars of the lags; older ones share the last bar."""

WITHOUT_RESTARTS = ("lags", "cost")
"""Plots without a time axis, or of values that a restart of the learner does not change."""

SEEN_S = 5.0
"""Seconds. A peer that was seen this shortly before the end of the ledger is drawn as present: presence is written
every second, and later on a busy machine."""

FIGURES = {
    "entropy": ("Entropy of the policy", "nats per token", Look.PURPLE),
    "mismatch_kl": ("KL of the policy to its rollouts", "nats per token", Look.INK),
    "grad_norm": ("Norm of the gradient", "no unit", Look.INK),
}
"""Metrics of the trainer that are drawn: title, unit and look."""


def plots(report: SwarmReport, costs: Costs) -> list[Plot]:
    """Return all plots but the first, without those that have nothing to draw."""
    history = report.history or History()
    found = [
        *([] if together(report) else [reward(report)]),
        _utilisation(report),
        _lag(report, history),
        lags(report),
        _versions(report),
        _version_bytes(report),
        _judged(report, history),
        cost(report, costs),
        _peers(report, history),
        _length(report),
        *(trainer_figure(report, name) for name in FIGURES),
    ]
    marks = restarts(report)
    return [
        replace(plot, wall=report.wall_s, marks=() if plot.key in WITHOUT_RESTARTS else marks)
        for plot in found
        if not plot.is_empty
    ]


def cost(report: SwarmReport, costs: Costs) -> Plot:
    """Return the plot of the cost beside the planned cost."""
    free = not costs.total and not costs.planned_total
    lines = (
        Line(name="cost", points=costs.spent, look=Look.BLUE, area=True),
        Line(name="planned", points=costs.planned, look=Look.GREEN),
    )
    return Plot(
        key="cost",
        title="Cost of rollout peers",
        unit=costs.currency,
        said=cost_sentence(costs),
        lines=() if free else lines,
    )


def cost_sentence(costs: Costs) -> str:
    """Return a sentence: what rollout peers cost, what was planned, and the difference."""
    if not costs.total and not costs.planned_total:
        return "No peer asked for money."
    said = words.money(costs.total, costs.currency)
    others = f" {costs.others} with a price in another currency are not included." if costs.others else ""
    if costs.planned_total is None:
        return f"{said}; no plan was made.{others}"
    planned = words.money(costs.planned_total, costs.currency)
    if costs.excess is None:
        return f"{said}; the plans expected no cost.{others}"
    way = "more" if costs.excess >= 0 else "less"
    return f"{said}, {words.share(abs(costs.excess))} {way} than the {planned} of the plans in force.{others}"


def timeline(key: str, judged: Sequence[Judged], rows: Sequence[Row], wall_s: float) -> Plot:
    """Return the plot of when a peer was present, and which rollouts it delivered meanwhile."""
    admitted, rejected = sum(one.admitted for one in judged), sum(one.rejected for one in judged)
    width = words.duration(judged[0].width_s) if judged else "0 s"
    return Plot(
        key=key,
        title="Timeline",
        unit="rollouts per minute",
        said=f"{words.counted(admitted, 'rollout')} admitted, {rejected:,} rejected, counted every {width}; above, "
        "when it was present."
        if admitted + rejected
        else "When it was present.",
        wall=wall_s,
        lines=_judged_lines(judged) if admitted + rejected else (),
        rows=tuple(rows),
        exact=words.rate,
    )


def presence_rows(here: Sequence[Span], planned: Sequence[Span], wall_s: float) -> Iterator[Row]:
    """Yield when a peer was present, and when the plan wanted it to be active, if it ever did."""
    yield Row(name="here", spans=tuple(here), look=Look.BLUE)
    if planned:
        yield Row(name="plan", spans=joined(planned, gap_s=wall_s / FINEST), look=Look.GREEN)


# The content of each plot


def _utilisation(report: SwarmReport) -> Plot:
    """Return the plot of training as a share of time, by bin: each bin counts the stretches that ended in it."""
    bins = Bins(wall_s=report.wall_s)
    sums: dict[int, LearnerTime] = {}
    for stretch in report.stretches:
        at = bins.of(stretch.until_s)
        sums[at] = sums.get(at, LearnerTime()) + stretch.time
    drawn = {
        "training": (Look.BLUE, {at: time.utilisation for at, time in sums.items()}),
        "blocked": (Look.ORANGE, {at: time.blocked for at, time in sums.items()}),
    }
    return Plot(
        key="utilisation",
        title="Utilisation of the learner",
        unit="share of time",
        said=f"{trained(report.learner_time).capitalize()}; blocked: by publication and checkpoints.",
        lines=tuple(
            Line(
                name=name,
                points=tuple(
                    ((at + 0.5) * bins.width_s, share) for at, share in sorted(shares.items()) if share is not None
                ),
                look=look,
                area=name == "training",
            )
            for name, (look, shares) in drawn.items()
        ),
        high=1.0,
        show=lambda value: f"{100 * value:.0f}%",
        exact=words.share,
    )


def _lag(report: SwarmReport, history: History) -> Plot:
    known = [(step.at_s, history.lags[step.step]) for step in report.steps if step.step in history.lags]
    average = sum(lag * number for lag, number in report.lags.items()) / report.trained if report.trained else 0.0
    window = "" if report.staleness is None else f"; the window is S = {report.staleness}"
    return Plot(
        key="lag",
        title="Lag of trained rollouts",
        unit="steps",
        said=f"{words.steps(average)} on average, {max(report.lags, default=0)} at most{window}.",
        lines=(
            Line(name="mean of a step", points=thinned([(at, lag.mean) for at, lag in known]), look=Look.BLUE),
            Line(name="largest", points=thinned([(at, float(lag.largest)) for at, lag in known], take=max),
                 look=Look.ORANGE),
        ),
        limit=None if report.staleness is None else (float(report.staleness), f"S = {report.staleness}"),
    )  # fmt: skip


def lags(report: SwarmReport) -> Plot:
    """Return the plot of the share of trained rollouts by lag, from 0 to the window."""
    bars: tuple[Bar, ...] = ()
    if report.lags:
        top = min(max(*report.lags, report.staleness or 0, 1), MAX_LAGS)
        counts = [0] * (top + 1)
        for lag, number in report.lags.items():
            counts[min(max(lag, 0), top)] += number
        older = max(report.lags) > top
        bars = tuple(
            Bar(label=f"{lag}+" if older and lag == top else str(lag), value=number / report.trained)
            for lag, number in enumerate(counts)
        )
    return Plot(
        key="lags",
        title="Rollouts by lag",
        unit="share of trained rollouts",
        said=f"{words.counted(report.trained, 'rollout')} {words.were(report.trained)} trained on; none had a lag "
        "above the window S.",
        across="lag (steps)",
        bars=bars,
        show=_short_share,
        exact=words.share,
    )


def _short_share(value: float) -> str:
    return "<1%" if 0 < value < 0.01 else f"{100 * value:.0f}%"


def _versions(report: SwarmReport) -> Plot:
    """Return the plot of the newest version over time: it falls back where the learner restarted."""
    numbers = [(version.at_s, float(version.version.version)) for version in report.versions]
    numbers.sort()
    each = ""
    if len(numbers) > 1:
        each = f", one every {_seconds((numbers[-1][0] - numbers[0][0]) / (len(numbers) - 1))} on average"
    again = len(report.incarnations) - 1
    restarted = f"; the learner restarted {words.times(again)}" if again > 0 else ""
    return Plot(
        key="versions",
        title="Policy versions",
        unit="training step of the newest version",
        said=f"{words.counted(len(numbers), 'version')} {words.were(len(numbers))} published{each}{restarted}.",
        lines=(Line(name="version", points=thinned(numbers, take=max), look=Look.BLUE, steps=True),),
        exact=lambda value: f"{value:,.0f}",
    )


def _seconds(seconds: float) -> str:
    return f"{words.figure(seconds)} s" if seconds < 60 else words.duration(seconds)


def _version_bytes(report: SwarmReport) -> Plot:
    of_each = sorted((version.at_s, float(version.new_bytes)) for version in report.versions)
    power, unit = _bytes_unit(max((size for _, size in of_each), default=0.0))
    typical = mean([size for _, size in of_each]) if of_each else 0.0
    return Plot(
        key="bytes",
        title="New data in each version",
        unit=unit,
        said=f"{words.size(round(typical))} on average of {words.size(report.weight_bytes)} a version:"
        " chunks that the version before did not have.",
        lines=(line("new", [(at, size / power) for at, size in of_each], Look.BLUE, markers=len(of_each) < BINS),),
    )


def _bytes_unit(largest: float) -> tuple[float, str]:
    for power, unit in ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB")):
        if largest >= power:
            return power, unit
    return 1.0, "B"


def _judged(report: SwarmReport, history: History) -> Plot:
    return Plot(
        key="judged",
        title="Rollouts received",
        unit="rollouts per minute",
        said=f"{report.admitted:,} admitted and {report.rejected:,} rejected.",
        lines=_judged_lines(history.judged) if report.admitted + report.rejected else (),
        exact=words.rate,
    )


def _judged_lines(judged: Sequence[Judged]) -> tuple[Line, ...]:
    middle = [one.at_s + one.width_s / 2 for one in judged]
    admitted = zip(middle, (one.admitted_per_min for one in judged), strict=True)
    rejected = zip(middle, (one.rejected_per_min for one in judged), strict=True)
    lines = [Line(name="admitted", points=tuple(admitted), look=Look.BLUE, area=True)]
    if any(one.rejected for one in judged):
        lines.append(Line(name="rejected", points=tuple(rejected), look=Look.ORANGE))
    return tuple(lines)


def _peers(report: SwarmReport, history: History) -> Plot:
    """Return the plot of how many rollout peers were present, and how many the plan wanted to be active."""
    rollout = {peer.peer for peer in report.rollout_peers}
    here = _present([span for peer, spans in history.spans.items() if peer in rollout for span in spans], report.wall_s)
    planned = [(max(0.0, plan.at_s), float(len(plan.active))) for plan in report.plans]
    most = max((number for _, number in here), default=0.0)
    return Plot(
        key="peers-here",
        title="Rollout peers",
        unit="peers",
        said=f"{len(rollout):,} took part, at most {most:.0f} at a time.",
        lines=(
            Line(
                name="present", points=thinned(here, take=max) if rollout else (), look=Look.BLUE, steps=True, area=True
            ),
            Line(name="planned", points=thinned(planned, take=max), look=Look.GREEN, steps=True),
        ),
        exact=lambda value: f"{value:g}",
    )


def _present(spans: Sequence[tuple[float, float]], wall_s: float) -> list[Point]:
    """Return how many of `spans` cover each moment: a point at each change. A peer present at the end stays present."""
    ending = wall_s - max(0.001 * wall_s, SEEN_S)
    changes = [(max(0.0, began), 1) for began, _ in spans] + [(ended, -1) for _, ended in spans if ended < ending]
    number, found = 0, {0.0: 0.0}
    for at, change in sorted(changes):
        number += change
        found[at] = float(number)
    return list(found.items())


def _length(report: SwarmReport) -> Plot:
    """Return the plot of the length of trained rollouts."""
    points = step_points([step for step in report.steps if step.rollouts], lambda step: step.tokens / step.rollouts)
    tokens, rollouts = sum(step.tokens for step in report.steps), sum(step.rollouts for step in report.steps)
    return Plot(
        key="length",
        title="Length of trained rollouts",
        unit="tokens per rollout",
        said=f"{words.figure(tokens / max(rollouts, 1))} tokens on average; the curve shows the mean of each step.",
        lines=(line("tokens", points, Look.BLUE),),
    )


def trainer_figure(report: SwarmReport, name: str) -> Plot:
    """Return the plot of the trainer's metric of this name, one of FIGURES, step by step."""
    title, unit, look = FIGURES[name]
    known = [step for step in report.steps if isinstance(step.metrics.get(name), int | float)]
    points = step_points(known, lambda step: float(step.metrics[name]))
    curve = smoothed(points)
    said = f"{_small(curve[0][1])} at the start, {_small(curve[-1][1])} at the end." if curve else ""
    return Plot(
        key=name.replace("_", "-"),
        title=title,
        unit=unit,
        said=said,
        lines=(line(title, points, look),) if len(points) > 1 else (),
        bands=bands(report),
        band="an alarm was active",
    )


def _small(value: float) -> str:
    return "less than 0.0001" if 0 < abs(value) < 1e-4 else words.figure(value)
