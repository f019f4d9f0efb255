"""Test the random swarms, the report on them, and how trials become bars."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.capacity import bars, bought, figures_of, parser, require_window, waits, worst
from benchmarks.harness import BenchmarkError
from benchmarks.swarms.bounds import AT_ONCE, MANY, thousand
from benchmarks.swarms.draw import (
    BROADCAST,
    PEERS,
    POOL,
    STALENESS,
    SUPPLY,
    TRAIN_S,
    candidate,
    drawn,
    only,
    planned,
    slow,
    supplier,
    timings,
)
from benchmarks.swarms.trial import Prediction, Provisioned, compare, predict, provision

SEEDS = range(60)

PREDICTION = Prediction(
    seed=1,
    staleness=3,
    kappa=2,
    peers=10,
    broadcast=0.5,
    generation=0.3,
    supply=1.0,
    waited=0.10,
    predicted=0.08,
    as_measured=0.15,
    without_batches=0.2,
    lag=1.5,
    expected_lag=1.7,
    lag_most=3,
    stale=1,
    completed=1000,
    overtaken=False,
)
BOUGHT = Provisioned(
    seed=1,
    staleness=3,
    kappa=1,
    peers=10,
    broadcast=0.5,
    share=1.0,
    chosen=4,
    cost=2.0,
    paper_kappa=2,
    paper_cost=5.0,
    busy=0.99,
    lag_most=3,
    stale=2,
    completed=1000,
)


def few(seeds: range) -> int:
    """The seed with the fewest machines."""
    return min(seeds, key=lambda seed: len(drawn(seed).machines))


def test_a_seed_is_one_swarm_within_the_ranges() -> None:
    assert drawn(3) == drawn(3)
    swarms = [drawn(seed) for seed in SEEDS]
    for swarm in swarms:
        learning = swarm.learning
        assert STALENESS[0] <= learning.staleness <= STALENESS[1]
        assert 1 <= learning.kappa <= learning.staleness
        assert PEERS[0] <= len(swarm.machines) <= PEERS[1]
        assert BROADCAST[0] <= swarm.broadcast <= BROADCAST[1]
        total = sum(machine.rate for machine in swarm.machines) * TRAIN_S / learning.rollouts
        assert total == pytest.approx(swarm.supply)
        assert SUPPLY[0] <= total <= SUPPLY[1]
        assert all(machine.batch_rollouts % learning.group_size == 0 for machine in swarm.machines)
    assert {swarm.learning.staleness for swarm in swarms} == set(range(1, 12))
    assert drawn(3, supply=POOL).supply > 1


def test_the_paper_is_told_of_slow_rollouts_and_a_plan_of_usual_ones() -> None:
    machine = drawn(3).machines[0]
    mean, told = supplier(machine), slow(machine)
    assert told.generation_s > mean.generation_s
    assert told.rate == mean.rate == machine.rate
    assert candidate(machine).supplier() == mean
    assert mean.lump_s == pytest.approx(machine.batch_s)


def test_the_paper_is_told_the_sum_of_both_delays() -> None:
    swarm = drawn(3)
    told = timings(swarm)
    delays = sorted(slow(machine).delay_s for machine in swarm.machines)
    assert delays[0] <= told.delay_s <= delays[-1]
    assert told.rollouts == swarm.learning.rollouts


def test_a_part_of_a_swarm_keeps_everything_else() -> None:
    swarm = planned(drawn(3))
    one = only(swarm, [swarm.machines[1].name])
    assert one.machines == (swarm.machines[1],)
    assert one.learning == swarm.learning


def test_trials_are_repeatable() -> None:
    seed = few(SEEDS)
    first = predict(seed, steps=25)
    assert first == predict(seed, steps=25)
    assert first.completed > 0
    assert first.lag_most <= first.staleness
    for trial in (provision(seed, steps=25), compare(seed, steps=25)):
        assert (trial.cost is None) == (trial.chosen == 0) == (trial.share < 1)


def test_bars_from_trials() -> None:
    predictions = [PREDICTION, replace(PREDICTION, waited=0.28)]
    found = {bar.name: bar for bar in bars(predictions, [BOUGHT], [replace(BOUGHT, busy=0.9)], 70.0)}
    assert found["bubble_error_median_pct"].value == pytest.approx(11.0)
    assert found["bubble_error_p95_pct"].value == pytest.approx(20.0)
    assert found["provisioned_ok_pct"].value == 50.0
    assert found["stale_discard_pct"].value == pytest.approx(0.2)
    assert found["cost_vs_paper_s3"].value == 0.4
    assert not found["sim_hour_1000_peers_s"].met


def test_who_finds_too_few_machines_is_counted() -> None:
    nobody = replace(BOUGHT, cost=None, chosen=0, share=0.8, paper_cost=None)
    found = {bar.name: bar.value for bar in bars([PREDICTION], [nobody], [nobody], 1.0)}
    assert found["provisioned_ok_pct"] is None
    assert found["cost_vs_paper_s3"] is None
    counted = figures_of([BOUGHT, nobody], [nobody, replace(BOUGHT, paper_kappa=None, paper_cost=None)])
    assert (counted["pools"], counted["infeasible"]) == (4, 2)
    assert (counted["paper_has_no_period"], counted["paper_too_few"]) == (1, 1)


def test_what_is_older_than_the_window_ends_it() -> None:
    require_window([PREDICTION, BOUGHT])
    with pytest.raises(BenchmarkError, match="lag 4 was trained on at S = 3"):
        require_window([replace(PREDICTION, lag_most=4)])


def test_tables() -> None:
    off = replace(PREDICTION, seed=9, waited=0.9, overtaken=True)
    assert [row[0] for row in waits([PREDICTION, off])] == [1, 1, 2]
    assert worst([PREDICTION, off])[0][0] == 9
    assert [row[2:4] for row in bought([BOUGHT], [])] == [[1, 1]]


def test_a_thousand_machines_are_enough() -> None:
    learning, machines = thousand(0)
    assert len(machines) == MANY
    assert all(30 <= machine.batch_s <= 60 and machine.batch_rollouts == AT_ONCE for machine in machines)
    assert sum(machine.rate for machine in machines) * learning.train_s > learning.rollouts


def test_options() -> None:
    options = parser().parse_args(["--reps", "3", "--steps", "40"])
    assert (options.reps, options.steps) == (3, 40)
