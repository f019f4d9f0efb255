"""Claim "activation": the planner's machines cost little more than the cheapest set, and far less than all machines.

The benchmark simulates REPS seeded pools of 3 to 200 unequal machines, some hours of virtual time each
(`benchmarks/market/trace.py`). Machines come, go, slow down and change their prices; then only the measurements are
noisy; then nothing changes. At every review four loops choose: the planner; the paper's loop, in the order of price per
rollout; the same in a random order; and one that activates every machine. The cost is USD per training step: the price
of the active machines, from their activation on, times the period that our capacity model gives for those that have
started.

Bars:

- over_optimum_pct: how far the planner's price, once nothing changes, is above the exact optimum for its supply (mean
  over pools).
- vs_random: its cost per step over the random order's, churn included (the median).
- flaps_per_hour: machines that are deactivated and activated again within an hour because of noise alone (the mean).
- reaction_s: the longest time until the supply is sufficient, after half of the machines were killed, a third slowed
  down, or the learner became quicker.
- paper_no_p2p and paper_no_cost: the paper's ablation by its own rule, in its direction.

Invariant: no clock is read, so a seed gives the same figures on every machine, except for searches that reach SOLVER_S.
"""

from __future__ import annotations

import os
import statistics
from argparse import ArgumentParser
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import inf, isfinite
from typing import Any

from benchmarks.harness import Bar, arguments, conclude, main, number, say, table
from benchmarks.market.ablation import Ablation, ablation
from benchmarks.market.loops import Account, Ours, loops, run
from benchmarks.market.shocks import reactions
from benchmarks.market.trace import CHURN_S, QUIET_S, Moment, trace
from learner.provisioning.model.capacity import Clockwork
from learner.provisioning.model.machine_selection import MARGIN, Choice, Requirement, cheapest
from learner.provisioning.planner.constants import REVIEW_S, SHORT_REVIEWS
from learner.provisioning.planner.pool import Pool
from node.runtime.stdout import keep_outlet

REPS = 200

OVER_OPTIMUM_PCT_AT_MOST = 1.0
VS_RANDOM_AT_MOST = 0.90

FLAPS_AT_MOST = 1.0
"""Each flap costs one start, about a minute of one machine; one an hour is negligible in a pool of any size."""

REACTION_S_AT_MOST = (SHORT_REVIEWS + 1) * REVIEW_S
"""A slight shortage must last SHORT_REVIEWS, and is first seen at the review after it began."""

CLASSES = ((3, 10), (11, 40), (41, 200))
BY_CHOICE = "one becomes free"
"""A shock that leaves the learner supplied. The planner follows it slowly, and it has no bar."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One pool. `over` and `greedy_over`: share above the optimum in the end; None if the optimum is free or empty."""

    machines: int
    accounts: dict[str, Account]
    busy: dict[str, float]
    over: float | None
    greedy_over: float | None
    reactions: dict[str, float]
    paper: Ablation

    def ratio(self, other: str) -> float | None:
        """Return the cost of a step with our loop over that with another; None if the other costs nothing."""
        theirs = self.accounts[other].per_step
        return self.accounts["ours"].per_step / theirs if theirs > 0 else None

    @property
    def flaps_per_hour(self) -> float:
        return self.accounts["ours"].quiet_flaps * 3600 / QUIET_S


def simulate(seed: int) -> Run:
    """Simulate a pool with every loop that chooses from it."""
    clock, moments = trace(seed)
    choosing = loops(clock, seed)
    accounts = {name: run(loop, clock, moments) for name, loop in choosing.items()}
    ours, last = choosing["ours"], moments[-1]
    assert isinstance(ours, Ours)
    return Run(
        machines=len(moments[0].true),
        accounts=accounts,
        busy={name: account.steps * clock.train_s / account.seconds for name, account in accounts.items()},
        over=over_optimum(clock, last, accounts["ours"].active),
        greedy_over=over_optimum(clock, last, accounts["greedy"].active),
        reactions=reactions(ours, clock, last.at_s, last.true, seed),
        paper=ablation(seed),
    )


def over_optimum(clock: Clockwork, moment: Moment, active: frozenset[str]) -> float | None:
    """Return how far the price of the active machines is above that of the cheapest set with the same margin.

    A set that supplies less than MARGIN, as the planner's dead band allows, is compared with the cheapest set that
    supplies no more, so that working without a reserve does not count as a saving.
    """
    pool = Pool(clock, moment.true)
    margin = min(MARGIN, pool.share(active) * (1 - 1e-9))
    if margin <= 0:
        return None
    best = cheapest(Requirement(clock, moment.true, margin), pool.names)
    return pool.price(active) / best.price - 1 if isinstance(best, Choice) and best.price > 0 else None


def bars(runs: Sequence[Run]) -> list[Bar]:
    """Return the bars."""
    over, random = values(runs, lambda one: one.over), values(runs, lambda one: one.ratio("random"))
    took = [s for one in runs for name, s in one.reactions.items() if name != BY_CHOICE]
    return [
        Bar(name="over_optimum_pct", value=100 * mean(over) if over else None, at_most=OVER_OPTIMUM_PCT_AT_MOST),
        Bar(name="vs_random", value=statistics.median(random) if random else None, at_most=VS_RANDOM_AT_MOST),
        Bar(name="flaps_per_hour", value=mean([one.flaps_per_hour for one in runs]), at_most=FLAPS_AT_MOST),
        Bar(name="reaction_s", value=_finite(max(took, default=None)), at_most=REACTION_S_AT_MOST),
        Bar(name="paper_no_p2p", value=statistics.median(p.no_p2p / p.full for p in papers(runs)), at_least=1.0),
        Bar(name="paper_no_cost", value=statistics.median(p.no_cost / p.full for p in papers(runs)), at_least=1.0),
    ]


def papers(runs: Sequence[Run]) -> list[Ablation]:
    return [one.paper for one in runs]


def values(runs: Sequence[Run], figure: Callable[[Run], float | None]) -> list[float]:
    """Return the values that exist."""
    return [value for one in runs if (value := figure(one)) is not None]


def mean(numbers: Sequence[float]) -> float:
    return statistics.fmean(numbers)


def rank(numbers: Sequence[float], share: float) -> float:
    """Return the value that this share of the numbers does not exceed."""
    return sorted(numbers)[min(len(numbers) - 1, int(share * len(numbers)))] if numbers else inf


HEADER = (
    "machines",
    "pools",
    "over optimum [%]: ours",
    "greedy",
    "cost per step over: greedy",
    "random",
    "all on",
    "learner busy [%]: ours",
    "greedy",
    "flaps per hour: noise",
    "churn",
)


def rows(runs: Sequence[Run]) -> Iterator[list[object]]:
    """Yield one row for each size of pool, and one for all."""
    low, high = CLASSES[0][0], CLASSES[-1][1]
    for least, most in (*CLASSES, (low, high)):
        of_size = [one for one in runs if least <= one.machines <= most]
        if not of_size:
            continue
        ratios = [
            values(of_size, lambda one, other=other: one.ratio(other)) for other in ("greedy", "random", "all on")
        ]
        yield [
            f"{least} to {most}",
            len(of_size),
            *(
                number(100 * mean(found)) if (found := values(of_size, figure)) else "-"
                for figure in (lambda one: one.over, lambda one: one.greedy_over)
            ),
            *(number(statistics.median(found)) if found else "-" for found in ratios),
            *(number(100 * mean([one.busy[name] for one in of_size]), 1) for name in ("ours", "greedy")),
            number(mean([one.flaps_per_hour for one in of_size])),
            number(mean([one.accounts["ours"].churn_flaps * 3600 / CHURN_S for one in of_size])),
        ]


def report(runs: Sequence[Run]) -> int:
    """Print the tables and the bars; return the exit code."""
    say("\n" + table(HEADER, list(rows(runs))))
    shocks = {name for one in runs for name in one.reactions}
    took = {name: values(runs, lambda one, name=name: one.reactions.get(name)) for name in sorted(shocks)}
    lines = [(name, len(s), number(statistics.median(s), 0), number(max(s), 0)) for name, s in took.items()]
    say("\n" + table(("shock", "pools", "supplied after, median [s]", "longest [s]"), lines))
    many = statistics.median(one.machines for one in papers(runs))
    star = statistics.median(one.machines_no_p2p for one in papers(runs))
    say(f"\nThe paper's rule: {many:g} machines; without peer-to-peer {star:g}. Table 2 has 9; 1.04 to 1.07 and 1.15.")
    over, flaps = values(runs, lambda one: one.over), [one.flaps_per_hour for one in runs]
    figures: dict[str, Any] = {
        "pools": len(runs),
        "over_optimum_p95_pct": 100 * rank(over, 0.95),
        "over_optimum_max_pct": 100 * max(over, default=inf),
        "greedy_over_optimum_pct": 100 * mean(values(runs, lambda one: one.greedy_over) or [inf]),
        "vs_greedy": statistics.median(values(runs, lambda one: one.ratio("greedy")) or [inf]),
        "vs_all_on": statistics.median(values(runs, lambda one: one.ratio("all on")) or [inf]),
        "vs_random_p95": rank(values(runs, lambda one: one.ratio("random")), 0.95),
        "busy_pct": 100 * mean([one.busy["ours"] for one in runs]),
        "flaps_per_hour_max": max(flaps),
    }
    return conclude("activation", bars(runs), figures)


def parser() -> ArgumentParser:
    """Return the parser of the options."""
    assert __doc__ is not None
    options = arguments(__doc__, reps=REPS)
    options.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all cores)")
    return options


def benchmark() -> int:
    """Measure, report, and return the exit code."""
    options = parser().parse_args()
    keep_outlet()
    runs: list[Run] = []
    with ProcessPoolExecutor(max_workers=max(1, options.jobs)) as workers:
        for one in workers.map(simulate, range(options.seed, options.seed + options.reps)):
            runs.append(one)
            if len(runs) % 20 == 0:
                say(f"{len(runs)} of {options.reps} pools")
        return report(runs)


def _finite(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


if __name__ == "__main__":
    main(benchmark)
