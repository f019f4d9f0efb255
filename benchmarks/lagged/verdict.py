"""Judge the recorded study: losses against S = 0 with their bounds, collapses, steps to 0.8.

Invariants:

- S = 0 counts with the learning rate that was best for it over all seeds.
- Losses are paired by seed.
- A bound is that of a one-sided t test at 95 %: one in twenty studies of a policy that loses nothing would exceed it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from scipy.stats import t as student

from benchmarks.harness import crossing, median
from benchmarks.lagged.laboratory import Outcome
from benchmarks.lagged.recipe import RATES, Cell
from benchmarks.lagged.record import Records

TARGET = 0.8
COLLAPSE = 0.25
"""A run has collapsed if its end is this far below its own best, ten times what noise does. So has one that ends below
half of its start.
"""


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Points of accuracy lost against S = 0: the mean over seeds, and its one-sided 95 % bound."""

    mean: float
    bound: float
    seeds: int


def best_rate(records: Records, recipe: str) -> float:
    """Return the learning rate with the highest mean final accuracy at S = 0."""
    finals: dict[float, list[float]] = {rate: [] for rate in RATES[recipe]}
    for cell, outcome in records.items():
        if cell.recipe == recipe and not (cell.staleness or cell.constant) and cell.learning_rate in finals:
            finals[cell.learning_rate].append(outcome.final)
    return max(RATES[recipe], key=lambda rate: statistics.fmean(finals[rate] or [0.0]))


def runs(
    records: Records, recipe: str, objective: str, staleness: int, rate: float, *, constant: bool = False
) -> dict[int, Outcome]:
    """Return outcomes by seed; at S = 0 those of any objective, since they are the same there."""
    return {
        cell.seed: outcome
        for cell, outcome in records.items()
        if (cell.recipe, cell.staleness, cell.learning_rate, cell.constant) == (recipe, staleness, rate, constant)
        and (cell.objective == objective or staleness == 0)
    }


def loss(fresh: dict[int, Outcome], stale: dict[int, Outcome]) -> Loss | None:
    """Return the loss; None without two paired seeds."""
    seeds = sorted(fresh.keys() & stale.keys())
    if len(seeds) < 2:
        return None
    points = [100 * (fresh[seed].final - stale[seed].final) for seed in seeds]
    mean, spread = statistics.fmean(points), statistics.stdev(points) / sqrt(len(points))
    return Loss(mean=mean, bound=mean + float(student.ppf(0.95, len(points) - 1)) * spread, seeds=len(points))


def has_collapsed(outcome: Outcome) -> bool:
    values = [value for _, value in outcome.curve]
    return max(values) - outcome.final > COLLAPSE or outcome.final < values[0] / 2


def steps_to_target(outcomes: Sequence[Outcome]) -> float | None:
    """Return the median step over seeds at which the current policy first reaches TARGET; None if half never do."""
    return median([crossing(outcome.curve, TARGET) for outcome in outcomes]) if outcomes else None


def missing(records: Records, cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell not in records]
