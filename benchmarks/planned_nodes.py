"""Claim "planned_nodes": with the planned number of nodes the learner hardly waits; with fewer it waits as predicted.

The trainer sleeps (`benchmarks/live/trainer.py`), and every version that it publishes is 2 MiB of random bytes. So the
benchmark does not measure training or a real publication, nor the share of time in which a learner trains. It compares
the plan's waits with those that really occur.

A learner and its rollout nodes run as processes of their own, each in a network namespace behind a link of its own.
Short runs are recorded first. For each window S, the T_train, T_bcast, T_gen and rates of such a run are planned with
as `volery plan` does it, which gives the number of nodes and the publication period. The swarm runs with these, and
once more with about three fifths of the nodes. All figures are read from the learners' recordings. A prediction is made
from the recording of its own run and compared with the same training steps, as `volery plan --from` does.

The learner, nodes, their libp2p connections, leases, deliveries, verdicts, ledger, signing, publication, distribution,
disks and clocks are real. The engine sleeps as the trainer does (kind "fake"), since two cores could not do the work of
all nodes at the same time. So T_train hardly varies, completions are made up and rewarded with 0, and a group's time
does not depend on its content. Since weights are random, no patch is smaller, and every version is sent whole.

Bars: for each window, the share of its time in which the learner did not wait for rollouts (1 - bubble); and the
largest difference between predicted and measured bubble with too few nodes, in points.

Invariants:

- With more than one repetition, shares and differences are medians over them.
- A run that fails ends the benchmark.

Needs Linux and root.
"""

from __future__ import annotations

import shutil
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.harness import Bar, BenchmarkError, arguments, conclude, main, median, number, say, scratch, table
from benchmarks.live.swarm import Plant, Run, run_swarm
from benchmarks.network.requirements import NetworkUnavailable, require_network
from learner.provisioning.model.machine_selection import Candidate
from learner.provisioning.model.windows import Outcome, Setting, Timings, Windows
from node.commands.plan.measured_run import Fitted, Measured, read_run

WINDOWS = (1, 3, 6)
REPS = 1
"""One repetition takes a quarter of an hour, and averages the variation between steps over STEPS of them."""

STEPS = 40
"""Training steps of a run with enough nodes. The last 32 are judged
(`learner.provisioning.estimation.estimates.WINDOW`).
"""

FEWER_STEPS = 36
"""Training steps of a run with too few nodes, which takes longer."""

FIRST = 8
"""Training steps before which the processor's use is not counted."""

SMALL_WINDOW, WIDE_WINDOW = Plant(learner_mbit=22.0), Plant(learner_mbit=17.0)
"""Setups for S = 1, and for larger S. A version takes longer to reach more nodes, and S = 1 needs three times as many.
With these uplinks of the learner, T_bcast is about half of T_train in both."""

TRIALS = {
    SMALL_WINDOW: Run(staleness=3, nodes=10, steps=14, first=4),
    WIDE_WINDOW: Run(staleness=3, nodes=3, steps=14, first=4),
}
"""The runs from which the plans are made, with about as many nodes as will be planned."""

MOST_NODES = 24
"""Most nodes that the plan may choose from. More would exceed the processor."""

FEWER = 0.6

NOT_WAITING_AT_LEAST, ERROR_POINTS_AT_MOST = 0.95, 10.0


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run: its settings, its measurements, and the share of all cores in use during it. `planned`: with as many
    nodes as planned, else with fewer."""

    run: Run
    planned: bool
    measured: Measured
    cores: float

    @property
    def not_waiting(self) -> float:
        """The share of its time in which the learner did not wait for rollouts."""
        return 1 - self.measured.late.bubble

    @property
    def predicted(self) -> float | None:
        """The bubble that our model predicts from the run's measurements."""
        return None if self.measured.predicted is None else max(0.0, self.measured.predicted.bubble)

    @property
    def error_points(self) -> float | None:
        """The difference between prediction and measurement, in hundredths."""
        return None if self.predicted is None else 100 * abs(self.predicted - self.measured.late.bubble)

    @property
    def broadcast(self) -> float:
        """T_bcast over T_train."""
        return _over(self.measured.broadcast_s, self.measured.train_s)

    @property
    def generation(self) -> float:
        """T_gen over T_train."""
        return _over(self.measured.generation_s, self.measured.train_s)


def _over(part: Any, whole: Any) -> float:
    return part.value / whole.value if part is not None and whole is not None else float("nan")


def benchmark() -> int:
    """Plan, run, print the table and the verdict."""
    options = parser().parse_args()
    try:
        require_network()
    except NetworkUnavailable as error:
        raise BenchmarkError(str(error)) from error
    with scratch(options.keep) as out:
        plans = plan_all(options.staleness or WINDOWS, out)
        results = [
            result
            for seed in range(options.seed, options.seed + options.reps)
            for outcome in plans
            for result in both(outcome, options, seed, out)
        ]
    return report(results)


def parser() -> ArgumentParser:
    """Return the parser of the options."""
    parser = arguments(__doc__ or "", reps=REPS)
    parser.add_argument("--staleness", type=int, action="append", metavar="S", help=f"only this; else {WINDOWS}")
    parser.add_argument("--steps", type=int, default=STEPS, metavar="N", help=f"training steps of a run ({STEPS})")
    return parser


# The runs.


def plant_of(staleness: int) -> Plant:
    """Return the setup in which the window S = `staleness` runs."""
    return SMALL_WINDOW if staleness == 1 else WIDE_WINDOW


def plan_all(windows: Sequence[int], out: Path) -> list[Outcome]:
    """Return the plan of each window, from a trial run in the same setup."""
    trials: dict[Plant, Fitted] = {}
    plans = []
    for staleness in windows:
        plant = plant_of(staleness)
        if plant not in trials:
            trials[plant], _ = attempt(plant, TRIALS[plant], out / f"trial-{plant.learner_mbit:g}")
        plans.append(planned(trials[plant], staleness))
        tell_plan(plans[-1])
    return plans


def planned(trial: Fitted, staleness: int) -> Outcome:
    """Return the fewest nodes that our rule asks for, with its margin, all like the trial's average node."""
    pool, settings = trial.pool, trial.settings
    known = trial.measured
    if pool is None or known.train_s is None or known.broadcast_s is None or known.generation_s is None:
        raise BenchmarkError("The trial run recorded too little to plan from. Look at its log with --keep.")
    like = Candidate(
        name="",
        price=1.0,
        rate=fmean(one.rate for one in pool.machines),
        broadcast_s=fmean(one.broadcast_s or 0.0 for one in pool.machines),
        generation_s=fmean(one.generation_s or 0.0 for one in pool.machines),
    )
    timings = Timings(
        train_s=known.train_s.value,
        rollouts=known.began.rollouts,
        broadcast_s=known.broadcast_s.value,
        generation_s=known.generation_s.value,
    )
    setting = Setting(timings=timings, source_s=settings["source_s"], candidates=alike(like, MOST_NODES))
    outcome = Windows(setting).ours(staleness)
    if not isinstance(outcome, Outcome):
        raise BenchmarkError(
            f"{MOST_NODES} nodes are too few for S = {staleness}: they supply {outcome.share:.2f} of the demand."
        )
    return outcome


def alike(one: Candidate, count: int) -> tuple[Candidate, ...]:
    """Return this many equal candidates."""
    return tuple(
        Candidate(
            name=f"n{index}",
            price=one.price,
            rate=one.rate,
            broadcast_s=one.broadcast_s,
            generation_s=one.generation_s,
        )
        for index in range(count)
    )


def fewer(nodes: int) -> int:
    """Return about three fifths of the nodes, but not all."""
    return min(nodes - 1, max(1, round(FEWER * nodes)))


def both(outcome: Outcome, options: Namespace, seed: int, out: Path) -> list[Result]:
    """Run with as many nodes as planned, and with fewer; return both results."""
    enough = len(outcome.choice.chosen)
    few_steps = min(options.steps, FEWER_STEPS)
    results = []
    for nodes, steps, is_planned in ((enough, options.steps, True), (fewer(enough), few_steps, False)):
        run = Run(staleness=outcome.staleness, kappa=outcome.kappa, nodes=nodes, steps=steps, first=FIRST, seed=seed)
        fitted, cores = attempt(plant_of(run.staleness), run, out / f"s{run.staleness}-{nodes}-{seed}")
        results.append(Result(run=run, planned=is_planned, measured=fitted.measured, cores=cores))
        tell(results[-1])
    return results


def attempt(plant: Plant, run: Run, out: Path) -> tuple[Fitted, float]:
    """Run once; return what the recording shows and the share of the cores in use. Keeps logs and learner state."""
    ran = run_swarm(plant, run, out)
    for node in out.glob("n*/"):
        shutil.rmtree(node)
    return read_run(ran.state), ran.cores


# The report.


def tell_plan(outcome: Outcome) -> None:
    """Print the plan."""
    say(f"S = {outcome.staleness}: {len(outcome.choice.chosen)} nodes and kappa = {outcome.kappa} are planned")


def tell(result: Result) -> None:
    """Print the progress."""
    run = result.run
    said = "-" if result.predicted is None else f"{result.predicted:.1%}"
    say(
        f"S = {run.staleness}, {run.nodes} nodes: the learner waited {result.measured.late.bubble:.1%} of its time, "
        f"{said} predicted; T_bcast {result.broadcast:.2f} T_train, cores {result.cores:.0%} busy"
    )


HEADER = [
    "S", "kappa", "nodes", "", "T_train [s]", "T_bcast [T_train]", "T_gen [T_train]", "not waiting [%]", "bubble [%]",
    "predicted [%]", "lag, mean", "max", "stale", "cores [%]",
]  # fmt: skip


def row(result: Result) -> list[str]:
    """Return a run's line under HEADER."""
    run, late = result.run, result.measured.late
    return [
        str(run.staleness),
        str(run.kappa),
        str(run.nodes),
        "planned" if result.planned else "fewer",
        number(late.train_s),
        number(result.broadcast),
        number(result.generation),
        number(100 * result.not_waiting, 1),
        number(100 * late.bubble, 1),
        number(None if result.predicted is None else 100 * result.predicted, 1),
        number(late.lag),
        str(max(late.lags)),
        str(late.stale),
        number(100 * result.cores, 0),
    ]


def of_window(results: Sequence[Result], staleness: int, *, planned: bool) -> list[Result]:
    """Return the repetitions of one run."""
    return [one for one in results if one.run.staleness == staleness and one.planned == planned]


def bars(results: Sequence[Result]) -> list[Bar]:
    """Return the bars of all runs."""
    found = []
    errors: list[float | None] = []
    for staleness in dict.fromkeys(one.run.staleness for one in results):
        enough, few = (of_window(results, staleness, planned=planned) for planned in (True, False))
        share = median([one.not_waiting for one in enough])
        found.append(Bar(name=f"not_waiting_s{staleness}", value=share, at_least=NOT_WAITING_AT_LEAST))
        errors.append(median([one.error_points for one in few]))
    worst = None if None in errors else max(one for one in errors if one is not None)
    return [*found, Bar(name="bubble_error_points", value=worst, at_most=ERROR_POINTS_AT_MOST)]


def figures(results: Sequence[Result]) -> dict[str, Any]:
    """Return the figures beside the bars."""
    found: dict[str, Any] = {"rollouts": WIDE_WINDOW.rollouts, "size_mib": WIDE_WINDOW.size_bytes / 2**20}
    for staleness in dict.fromkeys(one.run.staleness for one in results):
        for is_planned, word in ((True, "planned"), (False, "fewer")):
            runs = of_window(results, staleness, planned=is_planned)
            name = f"s{staleness}_{word}"
            found[f"{name}_nodes"] = runs[0].run.nodes
            found[f"{name}_max_lag"] = max(max(one.measured.late.lags) for one in runs)
            found[f"{name}_kappa"] = runs[0].run.kappa
            found[f"{name}_bubble"] = median([one.measured.late.bubble for one in runs])
            found[f"{name}_predicted"] = median([one.predicted for one in runs])
            found[f"{name}_train_s"] = median([one.measured.late.train_s for one in runs])
            found[f"{name}_broadcast"] = median([one.broadcast for one in runs])
            found[f"{name}_generation"] = median([one.generation for one in runs])
            found[f"{name}_cores"] = median([one.cores for one in runs])
    return found


def report(results: Sequence[Result]) -> int:
    """Print every run and the bars; return the exit code."""
    say("\n" + table(HEADER, [row(one) for one in results]))
    return conclude("planned_nodes", bars(results), figures(results))


if __name__ == "__main__":
    main(benchmark)
