"""Claim "capacity": the capacity model predicts how long the learner waits, and how many machines keep it busy.

REPS seeded random swarms, with numbers from the ranges in `benchmarks/swarms/draw.py`, run in the simulator that runs a
learner's own cores (`node/simulate`). The outcome is compared with what `learner.provisioning` predicts without
simulation.

1. Waits: too few machines or too many, any window and period. Bars: bubble_error_median_pct, bubble_error_p95_pct, the
   difference between simulated and predicted wait per step, in percent of T_train.
2. Provisioned: a pool, the period that the planner would choose, and the cheapest set by our rule, from a learner's
   measurements. Bars: provisioned_ok_pct, the percentage of pools with enough machines that kept the learner busy for
   97 % of the time; stale_discard_pct, the percentage of rollouts that became stale. If a lag exceeds S, the benchmark
   fails.
3. The paper's rule beside ours at S = 3, T_bcast of half a step to a whole one. Bar: cost_vs_paper_s3, the median.
4. ECHO-2's Table 2, and an hour of a thousand machines (sim_hour_1000_peers_s).

Invariants:

- Part 1 leaves no drawn swarm out. Parts 2 and 3 count and report the swarms without enough machines.
- A seed gives the same figures everywhere, except for the seconds of part 4.
"""

from __future__ import annotations

import os
import statistics
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, TypeVar

from benchmarks.activation import rank
from benchmarks.harness import Bar, BenchmarkError, arguments, conclude, main, number, say, table
from benchmarks.swarms.bounds import hour, table2_wait_s
from benchmarks.swarms.table2 import table2
from benchmarks.swarms.trial import BUSY, STEPS, Prediction, Provisioned, compare, predict, provision
from node.runtime.startup import prepare_process
from node.runtime.stdout import keep_outlet

REPS = 200

ERROR_MEDIAN_PCT_AT_MOST = 3.0
ERROR_P95_PCT_AT_MOST = 10.0
OK_PCT_AT_LEAST = 95.0
STALE_PCT_AT_MOST = 1.0
COST_AT_MOST = 0.75
HOUR_S_AT_MOST = 60.0

WORST = 8
"""Number of the worst predictions that are shown."""

Trial = TypeVar("Trial", Prediction, Provisioned)


def bars(
    predictions: Sequence[Prediction],
    provisioned: Sequence[Provisioned],
    compared: Sequence[Provisioned],
    hour_s: float | None,
) -> list[Bar]:
    """Return the bars."""
    errors, bought = errors_pct(predictions), [one for one in (*provisioned, *compared) if one.cost is not None]
    ratios = [ratio for one in compared if (ratio := one.vs_paper) is not None]
    ok = 100 * statistics.fmean(one.busy >= BUSY for one in bought) if bought else None
    return [
        Bar(name="bubble_error_median_pct", value=statistics.median(errors), at_most=ERROR_MEDIAN_PCT_AT_MOST),
        Bar(name="bubble_error_p95_pct", value=rank(errors, 0.95), at_most=ERROR_P95_PCT_AT_MOST),
        Bar(name="provisioned_ok_pct", value=ok, at_least=OK_PCT_AT_LEAST),
        Bar(name="stale_discard_pct", value=stale_pct(bought) if bought else None, at_most=STALE_PCT_AT_MOST),
        Bar(name="cost_vs_paper_s3", value=statistics.median(ratios) if ratios else None, at_most=COST_AT_MOST),
        Bar(name="sim_hour_1000_peers_s", value=hour_s, at_most=HOUR_S_AT_MOST),
    ]


def errors_pct(predictions: Sequence[Prediction]) -> list[float]:
    """Return each absolute error, in percent of T_train."""
    return [100 * abs(one.error) for one in predictions]


def stale_pct(trials: Sequence[Provisioned]) -> float:
    """Return the percentage of all generated rollouts that became stale."""
    return 100 * sum(one.stale for one in trials) / max(1, sum(one.completed for one in trials))


def require_window(trials: Sequence[Prediction | Provisioned]) -> None:
    """Raise BenchmarkError if a rollout with a lag above S was trained on."""
    for one in trials:
        if one.lag_most > one.staleness:
            raise BenchmarkError(
                f"seed {one.seed}: a rollout of lag {one.lag_most} was trained on at S = {one.staleness}."
            )


WAITS = (
    "swarms",
    "",
    "error, median [%]",
    "95th percentile",
    "largest",
    "as measured: median",
    "95th",
    "without batches: median",
    "95th",
)


def waits(predictions: Sequence[Prediction]) -> Iterator[list[object]]:
    """Yield errors by kind of swarm."""
    kinds: list[tuple[str, Callable[[Prediction], bool]]] = [
        ("S = 1", lambda one: one.staleness == 1 and not one.overtaken),
        ("S = 2, 3", lambda one: one.staleness in (2, 3) and not one.overtaken),
        ("S > 3", lambda one: one.staleness > 3 and not one.overtaken),
        ("published faster than they can be sent", lambda one: one.overtaken),
        ("all", lambda one: True),
    ]
    for name, belongs in kinds:
        if of_kind := [one for one in predictions if belongs(one)]:
            errors = errors_pct(of_kind)
            seen = [100 * abs(one.waited - one.as_measured) for one in of_kind]
            plain = [100 * abs(one.waited - one.without_batches) for one in of_kind]
            yield [
                len(of_kind),
                name,
                number(statistics.median(errors)),
                number(rank(errors, 0.95)),
                number(max(errors)),
                number(statistics.median(seen)),
                number(rank(seen, 0.95)),
                number(statistics.median(plain)),
                number(rank(plain, 0.95)),
            ]


WORST_HEADER = ("seed", "S", "kappa", "machines", "T_bcast", "T_gen", "supply", "waited", "predicted", "overtaken")


def worst(predictions: Sequence[Prediction]) -> list[list[object]]:
    """Return the rows where the model was furthest off; times over T_train, supply over R / T_train."""
    ordered = sorted(predictions, key=lambda one: -abs(one.error))
    return [
        [
            one.seed,
            one.staleness,
            one.kappa,
            one.peers,
            *(number(value) for value in (one.broadcast, one.generation, one.supply)),
            *(number(value, 3) for value in (one.waited, one.predicted)),
            "yes" if one.overtaken else "",
        ]
        for one in ordered[:WORST]
    ]


PROVISIONED = ("swarms", "", "enough", "busy 97 %", "least busy [%]", "stale [%]", "worst", "cost over the paper's")


def bought(provisioned: Sequence[Provisioned], compared: Sequence[Provisioned]) -> Iterator[list[object]]:
    """Yield the provisioned pools with their outcomes."""
    for name, trials in (("any pool", provisioned), ("S = 3, T_bcast 0.5 to 1", compared)):
        enough = [one for one in trials if one.cost is not None]
        ratios = [ratio for one in trials if (ratio := one.vs_paper) is not None]
        if enough:
            yield [
                len(trials),
                name,
                len(enough),
                sum(one.busy >= BUSY for one in enough),
                number(100 * min(one.busy for one in enough), 1),
                number(stale_pct(enough), 3),
                number(100 * max(one.stale_share for one in enough)),
                f"{number(statistics.median(ratios))} of {len(ratios)}" if ratios else "-",
            ]


def report(
    predictions: Sequence[Prediction], provisioned: Sequence[Provisioned], compared: Sequence[Provisioned], seed: int
) -> int:
    """Print the tables and the bars; return the exit code."""
    require_window([*predictions, *provisioned, *compared])
    say("\n" + table(WAITS, list(waits(predictions))))
    say("\nThe worst predictions:\n" + table(WORST_HEADER, worst(predictions)))
    say("\n" + table(PROVISIONED, list(bought(provisioned, compared))))
    for one in (*provisioned, *compared):
        if one.cost is not None and one.busy < BUSY:
            say(f"seed {one.seed}: {one.chosen} of {one.peers} machines, busy {100 * one.busy:.1f} %")
    rules, ten_s = table2(), table2_wait_s()
    say(
        f"\nECHO-2, Table 2: the ten waited {rules.measured_s:g} s a step. The paper's formula says "
        f"{rules.paper_s:.1f}, our model {rules.ours_s:.1f}, the simulator {ten_s:.1f}."
    )
    hour_s, busy, completed = hour(seed)
    say(f"An hour of a thousand machines: {hour_s:.1f} s, {completed} rollouts, learner busy {100 * busy:.1f} %.")
    measured = [100 * abs(one.waited - one.as_measured) for one in predictions]
    figures = {
        "swarms": len(predictions),
        "bubble_error_max_pct": max(errors_pct(predictions)),
        "measured_error_median_pct": statistics.median(measured),
        "measured_error_p95_pct": rank(measured, 0.95),
        "lag_error_median": statistics.median(abs(one.lag - one.expected_lag) for one in predictions),
        **figures_of(provisioned, compared),
        "table2_simulated_s": ten_s,
    }
    return conclude("capacity", bars(predictions, provisioned, compared, hour_s), figures)


def figures_of(provisioned: Sequence[Provisioned], compared: Sequence[Provisioned]) -> dict[str, Any]:
    """Return the figures beside the bars."""
    every = [one for one in (*provisioned, *compared) if one.cost is not None]
    return {
        "pools": len(provisioned) + len(compared),
        "infeasible": len(provisioned) + len(compared) - len(every),
        "paper_has_no_period": sum(one.paper_kappa is None for one in compared),
        "paper_too_few": sum(one.paper_kappa is not None and one.paper_cost is None for one in compared),
        "ours_too_few_of_these": sum(one.cost is None for one in compared),
        "stale_worst_pct": 100 * max((one.stale_share for one in every), default=0.0),
    }


def parser() -> ArgumentParser:
    """Return the parser of the options."""
    assert __doc__ is not None
    options = arguments(__doc__, reps=REPS)
    options.add_argument("--steps", type=int, default=STEPS, help=f"training steps of each swarm (default {STEPS})")
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    return options


def benchmark() -> int:
    """Measure, report, and return the exit code."""
    options = parser().parse_args()
    keep_outlet()
    prepare_process()
    seeds = range(options.seed, options.seed + options.reps)
    some = range(options.seed, options.seed + max(1, options.reps // 2))

    def trials(trial: Callable[..., Trial], seeds: range, what: str) -> list[Trial]:
        done: list[Trial] = []
        for one in workers.map(partial(trial, steps=options.steps), seeds):
            done.append(one)
            if len(done) % 50 == 0:
                say(f"{len(done)} of {len(seeds)} {what}")
        return done

    with ProcessPoolExecutor(max_workers=max(1, options.jobs)) as workers:
        predictions = trials(predict, seeds, "swarms predicted")
        provisioned = trials(provision, some, "pools provisioned")
        compared = trials(compare, some, "pools compared with the paper's rule")
    return report(predictions, provisioned, compared, options.seed)


if __name__ == "__main__":
    main(benchmark)
