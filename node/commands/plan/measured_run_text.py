"""Put the measurements of a recorded run into words and tables: its estimates, and a plan's prediction for it.

Pure.

Invariants:

- A value that was not measured is reported as such, and never as a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.box import Box
from rich.console import Group, RenderableType
from rich.text import Text

from learner.provisioning.estimation.estimates import Estimate
from node.commands.plan.measured_run import Measured, Peer
from node.commands.plan.plan import Plan
from node.commands.plan.pool import KIND_CHARS, KINDS_LISTED
from node.reports.model.time_words import kinds, trained
from node.reports.text.tables import table
from node.runtime import formatting as words

MAX_LAGS_LISTED = 8
"""Most lags in one line. Wider distributions are shown by their mean and maximum."""


def judged(measured: Measured) -> Iterator[tuple[str, str]]:
    """Yield the run in a few lines: predicted against measured."""
    began, steady, late, predicted = measured.began, measured.steady, measured.late, measured.predicted
    started = f", started {words.times(measured.runs)}" if measured.runs > 1 else ""
    window = f"S = {began.staleness}, kappa = {measured.kappa}, R = {began.rollouts:,}"
    yield "run", f"{words.duration(measured.seconds)}{started}, {began.mode}, {window}"
    skipped = f"; the first {words.count(measured.left_out)} left out" if measured.left_out else ""
    alone = f"; {words.count(measured.alone)} after them left out, when no peer was here" if measured.alone else ""
    predicted_steps = "predicted: the last one" if late.count == 1 else f"predicted: the last {late.count}"
    yield "steps", f"{steady.count:,}; {predicted_steps}{skipped}{alone}"
    yield "learner", trained(measured.time)
    yield "its time", kinds(measured.time)
    said = "" if predicted is None else f", {words.share(predicted.bubble)} predicted for these"
    yield (
        "bubble",
        f"{words.share(steady.bubble)} measured, {words.share(late.bubble)} over the last {late.count}{said}",
    )
    told = "" if predicted is None else f", {predicted.lag:.1f} predicted for these"
    yield "lag", f"{steady.lag:.2f} training steps measured, {late.lag:.2f} over the last {late.count}{told}"
    yield "lags", words.histogram(steady.shares, MAX_LAGS_LISTED) or "nothing was trained on"
    yield "stale", f"{words.share(steady.stale_share)} of the admitted rollouts when their batch formed"
    if predicted is None:
        yield "no prediction", "T_train, T_bcast, T_gen or the peers' rates were not measured, or S is too large"


def estimates(measured: Measured, box: Box) -> RenderableType:
    """Return the times of the swarm as a table."""
    times = {"T_train": measured.train_s, "T_bcast": measured.broadcast_s, "T_gen": measured.generation_s}
    rows = [[name, *_cells(estimate), str(estimate.count if estimate else 0)] for name, estimate in times.items()]
    return table(["seconds", "estimate", "between", "and", "values"], rows, box)


def peers(plan: Plan, measured: Measured, box: Box) -> RenderableType:
    """Return the peers' prices, rates and times as a table."""
    rows = [
        [words.plain_name(one.name, KIND_CHARS), words.money(one.price, ""), *_rate_cells(one),
         _value(one.broadcast_s), _value(one.generation_s)]
        for one in measured.peers[:KINDS_LISTED]
    ]  # fmt: skip
    currency = measured.began.currency
    headings = ["peer", f"{currency}\nan hour", "rollouts\nper s", "between", "and", "T_bcast\ns", "T_gen\ns"]
    drawn = table(headings, rows, box)
    left = len(measured.peers) - len(rows)
    said = [f"and {left} more"] if left else []
    if measured.silent:
        said.append(f"{measured.silent} left out of the pool: they neither delivered nor reported their speed")
    return Group(drawn, Text("; ".join(said), style="dim")) if said else drawn


def _cells(estimate: Estimate | None) -> list[str]:
    if estimate is None:
        return [words.NOTHING] * 3
    high = words.whole_figure(estimate.high) if math.isfinite(estimate.high) else "open"
    return [words.whole_figure(estimate.value), words.whole_figure(estimate.low), high]


def _rate_cells(one: Peer) -> list[str]:
    """Return the cells of a rate. For a peer that was never kept busy it is a lower bound."""
    value, low, high = _cells(one.rate)
    return [value, low, "or more" if one.is_rate_least else high]


def _value(estimate: Estimate | None) -> str:
    return words.NOTHING if estimate is None else words.whole_figure(estimate.value)
