"""Our capacity model against the condition it is derived from, and against a literal simulation of rollouts."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from learner.provisioning.model import capacity as overlap
from learner.provisioning.model.capacity import (
    Clockwork,
    Supplier,
    Supply,
    period_s,
    rate_needed,
    supply_of,
)
from tests.support.capacity_condition import bubble, never_waits, useful_s

T, R = 1.0, 400
"""Times of these tests are in units of T_train."""


def clock(staleness: int, kappa: int) -> Clockwork:
    return Clockwork(train_s=T, rollouts=R, staleness=staleness, kappa=kappa)


def equal(rate: float, delay_s: float) -> list[Supplier]:
    """One peer is as good as many that are equal."""
    return [Supplier(rate=rate, broadcast_s=delay_s, generation_s=0.0)]


def simulated_period(clock: Clockwork, suppliers: Sequence[Supplier], steps: int = 120) -> float:
    """Every rollout, begun with the newest version installed and brought home; the oldest are trained on first."""
    published, starts, begun = [(0.0, 0)], [], []
    for number, peer in enumerate(suppliers):
        heapq.heappush(begun, ((number % 7) / 7 / peer.rate, number))
    arriving: list[tuple[float, int]] = []
    waiting: list[int] = []
    over_s = 0.0
    for step in range(steps):
        if step and step % clock.kappa == 0:
            published.append((over_s, step))
        now = over_s
        while True:
            while begun and begun[0][0] <= now:
                at, number = heapq.heappop(begun)
                peer = suppliers[number]
                made = [version for since, version in published if since + peer.broadcast_s <= at]
                if made:
                    heapq.heappush(arriving, (at + peer.generation_s, made[-1]))
                heapq.heappush(begun, (at + 1 / peer.rate, number))
            while arriving and arriving[0][0] <= now:
                heapq.heappush(waiting, heapq.heappop(arriving)[1])
            while waiting and step - waiting[0] > clock.staleness:
                heapq.heappop(waiting)
            if len(waiting) >= clock.rollouts:
                break
            now = min(begun[0][0], arriving[0][0] if arriving else math.inf)
        for _ in range(clock.rollouts):
            heapq.heappop(waiting)
        starts.append(now)
        over_s = now + clock.train_s
    last = steps - 1 - (steps // 2 - 1) % clock.kappa
    first = last - (last - steps // 2) // clock.kappa * clock.kappa
    return (starts[last] - starts[first]) / (last - first)


@pytest.mark.parametrize(
    ("staleness", "kappa", "generation_s", "wait"),
    [
        # The quick simulation of the reference: T_bcast = 0.88 T_train, mu = R / T_train.
        (3, 2, 0.0, 0.0),
        (3, 2, 0.3, 0.045),
        (6, 5, 0.0, 0.0),
        (6, 5, 0.3, 0.036),
        (11, 10, 0.0, 0.0),
        (1, 1, 0.0, 0.437),  # (T_train + R / mu + T_bcast) / 2
        (3, 1, 0.3, 0.0),
    ],
)
def test_known_waits(staleness: int, kappa: int, generation_s: float, wait: float) -> None:
    peers = [Supplier(rate=R / T, broadcast_s=0.88, generation_s=generation_s)]
    assert period_s(clock(staleness, kappa), peers) == pytest.approx(T + wait, abs=5e-3)
    assert simulated_period(clock(staleness, kappa), peers) == pytest.approx(T + wait, abs=0.015)


@given(
    st.integers(1, 11).flatmap(lambda s: st.tuples(st.just(s), st.integers(1, s))),
    st.floats(0.01, 3),
    st.floats(0.3, 3),
)
def test_equal_peers_wait_exactly_where_the_rate_needed_is_not_there(
    window: tuple[int, int], delay_s: float, share: float
) -> None:
    timing = clock(*window)
    needed = rate_needed(timing, delay_s=delay_s)
    rate = share * (needed if math.isfinite(needed) else R / T)
    peers = equal(rate, delay_s)
    # Nearer, or with next to no time for the first batch, a wait is less than the recursion's rounding.
    assume(abs(share - 1) > 1e-3 and not 100 * R / T < needed < math.inf)
    waits = period_s(timing, peers) > T * (1 + 1e-6)
    assert waits == (not never_waits(timing, peers)) == (rate < needed)


suppliers = st.lists(
    st.builds(Supplier, rate=st.floats(1, 100), broadcast_s=st.floats(0, 3), generation_s=st.floats(0, 1)),
    min_size=1,
    max_size=12,
)
windows = st.integers(1, 11).flatmap(lambda s: st.tuples(st.just(s), st.integers(1, s)))


@given(windows, suppliers)
def test_the_recursion_and_the_condition_agree(window: tuple[int, int], peers: list[Supplier]) -> None:
    timing = clock(*window)
    period = period_s(timing, peers)
    assert period >= max(T, R / sum(peer.rate for peer in peers)) * (1 - 1e-9)
    if never_waits(timing, peers):
        assert period == pytest.approx(T)


@given(windows, suppliers, st.floats(1.01, 2))
def test_more_is_never_slower(window: tuple[int, int], peers: list[Supplier], factor: float) -> None:
    timing = clock(*window)
    period = period_s(timing, peers)
    assert period_s(timing, [replace(peer, rate=peer.rate * factor) for peer in peers]) <= period * (1 + 1e-9)
    assert period_s(replace(timing, staleness=timing.staleness + 1), peers) <= period * (1 + 1e-9)


@settings(max_examples=15, deadline=None)
@given(windows, st.integers(0, 1 << 30))
def test_a_literal_simulation_waits_as_long(window: tuple[int, int], seed: int) -> None:
    rng = random.Random(seed)
    timing = clock(*window)
    rates = [rng.uniform(0.2, 3) for _ in range(rng.randint(3, 40))]
    total = R / T * rng.uniform(0.6, 1.5)
    delay_s = rng.uniform(0.05, 1) * timing.kappa
    peers = [
        Supplier(
            rate=rate * total / sum(rates),
            broadcast_s=delay_s * rng.uniform(0.8, 1),
            generation_s=rng.uniform(0.05, 0.4),
        )
        for rate in rates
    ]
    assert simulated_period(timing, peers) == pytest.approx(period_s(timing, peers), rel=0.03)


def drawn(rng: random.Random, widest: int) -> tuple[Clockwork, list[Supplier]]:
    """Too few machines and enough, near and far, with batches and without, paced and not, overtaken and not."""
    staleness = rng.randint(1, widest)
    total, mean_broadcast_s = R / T * rng.uniform(0.6, 1.6), rng.uniform(0.05, 2 if widest < 12 else staleness)
    rates = [rng.uniform(0.2, 3) for _ in range(rng.randint(1, 12))]
    peers = []
    for rate in rates:
        generation_s = rng.uniform(0.02, 1.5)
        peers.append(
            Supplier(
                rate=rate * total / sum(rates),
                broadcast_s=mean_broadcast_s * rng.uniform(0.5, 1.5),
                generation_s=generation_s,
                lump_s=rng.choice([0.0, rng.uniform(0, generation_s)]),
            )
        )
    ahead, source_s = rng.choice([math.inf, rng.uniform(1, 4), 2.0]), rng.choice([0.0, rng.uniform(0, 2)])
    return replace(clock(staleness, rng.randint(1, staleness)), ahead=ahead, broadcast_s=source_s), peers


@pytest.mark.parametrize(("widest", "swarms"), [(11, 300), (60, 20)])
def test_the_recursion_is_followed_for_long_enough(widest: int, swarms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(7)
    drawn_swarms = [drawn(rng, widest) for _ in range(swarms)]
    periods = [period_s(*one) for one in drawn_swarms]
    monkeypatch.setattr(overlap, "STEPS", 4 * overlap.STEPS)
    monkeypatch.setattr(overlap, "ROUNDS", 4 * overlap.ROUNDS)
    assert [period_s(*one) for one in drawn_swarms] == pytest.approx(periods, abs=1e-3 * T)
    assert max(periods) > 1.5 * T


def test_the_widest_window() -> None:
    # For one step nothing comes of the last version in use; then the missing rollouts take a ninth longer.
    assert period_s(clock(1000, 1000), equal(0.9 * R / T, T)) == pytest.approx(T / 0.9 + T / 1000, rel=1e-4)


def test_whom_no_version_reaches_supplies_nothing() -> None:
    assert period_s(clock(3, 1), equal(2 * R / T, math.inf)) == math.inf


def test_pacing_bounds_what_is_on_its_way() -> None:
    peers = [Supplier(rate=2 * R / T, broadcast_s=0.1, generation_s=2.0)]
    assert period_s(clock(6, 1), peers) == pytest.approx(T)
    # Two batches at a time, each 2.5 T from its leases to its last rollout.
    assert period_s(replace(clock(6, 1), ahead=2), peers) == pytest.approx(1.25 * T, rel=5e-3)
    assert period_s(replace(clock(6, 1), ahead=2.5), peers) == pytest.approx(T, rel=5e-3)


def test_versions_that_overtake_each_other_are_skipped() -> None:
    peers = equal(2 * R / T, 1.8)
    timing = replace(clock(6, 1), broadcast_s=1.8)
    assert not never_waits(timing, peers)
    assert period_s(timing, peers) == pytest.approx(T)  # every other version is sent
    assert period_s(replace(timing, staleness=1), peers) > 1.5 * T


def test_nobody_supplies_nothing() -> None:
    assert period_s(clock(3, 1), []) == math.inf
    assert bubble(clock(3, 1), []) == 1.0
    assert not never_waits(clock(3, 1), [])


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 50)), min_size=1, max_size=20), st.floats(0.01, 1e5))
def test_the_inverse_of_supply(peers: list[tuple[float, float]], rollouts: float) -> None:
    supply = Supply(peers)
    assert supply.count(supply.time(rollouts)) == pytest.approx(rollouts, rel=1e-6, abs=1e-6)
    direct = sum(rate * max(0.0, 70.0 - delay) for rate, delay in peers)
    assert supply.count(70.0) == pytest.approx(direct)


@given(windows, suppliers, st.floats(0, 40))
def test_one_version_counts_until_the_next_takes_its_place(
    window: tuple[int, int], peers: list[Supplier], at_s: float
) -> None:
    timing = clock(*window)
    supply = supply_of(peers)
    counted = sum(peer.rate * useful_s(timing, peer.delay_s, at_s) for peer in peers)
    assert counted == pytest.approx(supply.count(at_s) - supply.count(at_s - timing.kappa * T), rel=1e-6, abs=1e-6)
