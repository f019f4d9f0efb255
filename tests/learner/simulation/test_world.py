"""The simulated swarm, in events."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.provisioning.estimation.recording import (
    Delivered,
    Installed,
    Joined,
    Left,
    Published,
    Stepped,
    Withdrawn,
)
from learner.simulation.machines import Absence, Change
from learner.simulation.rollout_node import TIMEOUT_S
from learner.simulation.trace import LEARNER
from tests.support.examples import examples
from tests.support.simulated_swarms import LEARNING, machine, machines, of, world

HOUR_S = 3600.0


def test_a_seed_is_one_story() -> None:
    def story(seed: int) -> list[object]:
        simulated, events = world(machines(6, stops_per_hour=4.0), seed=seed)
        simulated.run(until_s=900)
        return list(events)

    assert story(1) == story(1)
    assert story(1) != story(2)


def test_another_machine_changes_nobody_s_luck() -> None:
    def installed(count: int) -> list[float]:
        simulated, events = world(machines(count))
        simulated.run(steps=4)
        return [event.at_s for event in of(events, Installed) if event.peer == "m0" and event.version == 0]

    assert installed(2) == installed(9)


@settings(max_examples=examples(25), deadline=None)
@given(
    st.integers(0, 5),
    st.integers(1, 6),
    st.lists(st.tuples(st.floats(0.05, 1.0), st.floats(0, 60), st.floats(0, 8)), min_size=1, max_size=8),
    st.booleans(),
    st.integers(0, 9),
)
def test_no_batch_holds_what_is_too_old_and_nothing_is_counted_twice(
    staleness: int, kappa: int, pool: list[tuple[float, float, float]], plan: bool, seed: int
) -> None:
    kappa = min(kappa, max(1, staleness))
    them = [
        machine(f"m{number}", rate, broadcast_s=delay_s, stops_per_hour=stops, spread=0.4)
        for number, (rate, delay_s, stops) in enumerate(pool)
    ]
    simulated, events = world(them, seed=seed, plan=plan, staleness=staleness, kappa=kappa, train_spread=0.2)
    outcome = simulated.run(until_s=1200)
    steps = of(events, Stepped)
    assert all(max(step.lags) <= staleness for step in steps)
    assert all(step.rollouts >= LEARNING.rollouts for step in steps)
    assert all(later.step == earlier.step + 1 for earlier, later in pairwise(steps))
    assert all(before.at_s <= after.at_s for before, after in pairwise(events))
    trained = sum(step.rollouts for step in steps)
    assert trained + outcome.stale <= outcome.completed
    assert sum(outcome.made.values()) == sum(event.admitted for event in of(events, Delivered))


def test_versions_are_published_every_kappa_steps() -> None:
    simulated, events = world(machines(8), kappa=2)
    simulated.run(steps=7)
    assert [event.version for event in of(events, Published)] == [0, 2, 4, 6]


def test_a_machine_that_is_taken_away_loses_its_leases_and_others_make_up_for_it() -> None:
    pool = [machine("gone", absences=[Absence(from_s=100.0)]), *machines(5)]
    simulated, events = world(pool)
    outcome = simulated.run(steps=12)
    (left,) = of(events, Left)
    lost = [event for event in of(events, Withdrawn) if event.peer == "gone"]
    assert left.at_s == 100.0 + TIMEOUT_S
    assert [(event.at_s, event.status) for event in lost] == [(left.at_s, "lost")]
    assert outcome.lost == lost[0].rollouts > 0
    assert all(event.at_s < 100.0 for event in of(events, Delivered) if event.peer == "gone")
    assert len(of(events, Stepped)) == 12
    assert simulated.workload.capacity.leasing.pending("gone") == 0  # type: ignore[arg-type]
    assert outcome.active_s["gone"] == pytest.approx(100.0)


def test_who_is_back_before_it_was_missed_loses_what_it_held_and_keeps_what_it_gets_then() -> None:
    simulated, events = world([machine("brief", absences=[Absence(from_s=100.0, until_s=110.0)])])
    simulated.run(until_s=300)
    lost = of(events, Withdrawn)
    assert [event.at_s for event in lost] == [110.0]
    assert of(events, Left) == []
    assert len(of(events, Joined)) == 2
    assert [event for event in of(events, Delivered) if event.at_s > 110.0]


def test_a_lease_that_runs_out_is_withdrawn_and_its_delivery_is_in_vain() -> None:
    pool = [*machines(5), machine("slow", 0.5, changes=[Change(at_s=60.0, speed=0.02)])]
    simulated, events = world(pool, lease_s=120.0, staleness=9)
    outcome = simulated.run(until_s=HOUR_S / 2)
    expired = [event for event in of(events, Withdrawn) if event.status == "expired"]
    assert {event.peer for event in expired} == {"slow"}
    assert outcome.stale >= sum(event.rollouts for event in expired[:1])


def test_a_machine_that_became_slow_is_told_that_what_it_makes_comes_too_late() -> None:
    pool = [*machines(5), machine("slow", 0.5, changes=[Change(at_s=60.0, speed=0.02)])]
    simulated, events = world(pool)
    outcome = simulated.run(until_s=HOUR_S / 2)
    recalled = [event for event in of(events, Withdrawn) if event.status == "recalled"]
    assert {event.peer for event in recalled} == {"slow"}
    assert outcome.recalled == sum(event.rollouts for event in recalled) > 0
    assert (outcome.stale, outcome.lost) == (0, 0)
    assert simulated.workload.capacity.leasing.recalled == {}
    taken = [step.at_s - step.busy_s for step in of(events, Stepped)]
    latency_s = 2 * pool[-1].latency_s
    told = [min(abs(event.at_s - latency_s - at_s) for at_s in taken) for event in recalled]
    assert max(told) < 0.001, "at once, when a batch is taken"


def test_prices_change_what_is_paid_from_then_on() -> None:
    pool = [machine("dear", 3.0, price=2.0, changes=[Change(at_s=1800.0, price=4.0)])]
    simulated, _ = world(pool, price=10.0)
    outcome = simulated.run(until_s=HOUR_S)
    assert outcome.paid["dear"] == pytest.approx(3.0)
    assert outcome.paid[LEARNER] == pytest.approx(10.0)
    assert outcome.cost == pytest.approx(13.0)


def test_a_slower_machine_delivers_less_and_slower_lines_make_older_rollouts() -> None:
    def outcome(**change: float) -> tuple[int, float]:
        them = machines(8, 0.4, spread=0.0, delay_spread=0.0, changes=[Change(at_s=0.0, **change)])
        simulated, events = world(them, staleness=6)
        told = simulated.run(until_s=HOUR_S)
        lags: Counter[int] = told.lags
        return len(of(events, Stepped)), sum(lag * n for lag, n in lags.items()) / lags.total()

    steps, lag = outcome(price=0.0)
    slower, _ = outcome(speed=0.5)
    _, older = outcome(delay=8.0)
    assert slower < 0.8 * steps
    assert older > lag + 0.5


def test_turns_are_exactly_on_policy() -> None:
    simulated, events = world(machines(4), staleness=0)
    outcome = simulated.run(steps=10)
    assert set(outcome.lags) == {0}
    assert outcome.stale == 0
    assert min(outcome.waited_s) > 0
    assert {step.rollouts for step in of(events, Stepped)} == {LEARNING.rollouts}


def test_synchronous_waits_for_the_last_line() -> None:
    pool = [*machines(4, delay_spread=0.0), machine("far", broadcast_s=40.0, delay_spread=0.0)]

    def waited(barrier: bool) -> float:
        simulated, events = world(pool, staleness=0, barrier=barrier)
        outcome = simulated.run(steps=10)
        assert set(outcome.lags) == {0}
        published = {event.version: event.at_s for event in of(events, Published)}
        if barrier:
            first = {}
            for event in of(events, Delivered):
                first.setdefault(event.version, event.started_s)
            assert all(first[v] >= at_s + 40.0 for v, at_s in published.items() if v in first and v > 0)
        return math.fsum(outcome.waited_s[2:]) / len(outcome.waited_s[2:])

    assert waited(True) > waited(False)


def test_without_p2p_copies_arrive_one_after_the_other() -> None:
    pool = machines(6, delay_spread=0.0, broadcast_s=2.0, install_s=0.0)
    simulated, events = world(pool, copy_s=4.0, staleness=6, kappa=3)
    simulated.run(steps=6)
    published = {event.version: event.at_s for event in of(events, Published)}
    arrived = sorted(event.at_s - published[3] for event in of(events, Installed) if event.version == 3)
    assert len(arrived) == 6
    assert all(at_s >= 4.0 * place for place, at_s in enumerate(arrived, start=1))


def test_who_starts_is_paid_and_has_nothing_yet() -> None:
    simulated, events = world([machine("new", 3.0, price=3.6, start_s=100.0, start_price=0.5), *machines(3)])
    outcome = simulated.run(until_s=1000)
    first = next(event for event in of(events, Installed) if event.peer == "new")
    assert first.at_s > 100.0
    assert outcome.paid["new"] == pytest.approx(0.5 + 3.6 * 1000 / HOUR_S)


def test_a_thousand_machines_are_no_more_than_what_happens() -> None:
    simulated, events = world(machines(1000, 0.1), rollouts=2000)
    outcome = simulated.run(steps=3)
    assert len(outcome.busy_s) == 3
    assert len(of(events, Joined)) == 1000
