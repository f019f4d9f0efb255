"""What sets of peers supply, cost, and could do without."""

from __future__ import annotations

import pytest

from learner.provisioning.activation import MARGIN, Candidate
from learner.provisioning.overlap import Clockwork, period_s
from learner.provisioning.pool import Pool

CLOCK = Clockwork(train_s=100.0, rollouts=100, staleness=3, kappa=1)


def machine(name: str, price: float, rate: float) -> Candidate:
    return Candidate(name=name, price=price, rate=rate, broadcast_s=50.0, generation_s=10.0)


POOL = Pool(CLOCK, [machine("a", 0.3, 0.6), machine("b", 0.5, 0.6), machine("c", 0.0, 0.2), machine("d", 0.0, 0.1)])


def test_a_share_of_one_is_just_enough() -> None:
    assert POOL.share({"a", "b"}) == pytest.approx(1.2)
    assert POOL.share({"a"}) == pytest.approx(0.6)
    assert POOL.share(()) == 0.0
    assert period_s(CLOCK, [POOL["a"].supplier()]) == pytest.approx(CLOCK.train_s / 0.6)


def test_nobody_at_all_supplies_nothing() -> None:
    empty = Pool(CLOCK, [])
    assert empty.share(()) == 0.0
    assert empty.useful == frozenset()


def test_prices_and_rates_add_up() -> None:
    assert POOL.price({"a", "b", "c"}) == pytest.approx(0.8)
    assert POOL.rate({"a", "c"}) == pytest.approx(0.8)
    assert POOL.rate_needed == pytest.approx(1.0)


def test_the_dearest_per_rollout_is_first_and_of_the_free_the_slowest() -> None:
    assert POOL.dearest_first(POOL.names) == ["b", "a", "d", "c"]


def test_who_could_go_leaves_the_margin_untouched() -> None:
    spared = POOL.replaceable({"a", "b", "d"}, "c")
    assert spared == ["d"]
    assert POOL.share({"a", "b", "c"}) >= MARGIN


def test_useful_is_whoever_supplies_something_or_might() -> None:
    pool = Pool(CLOCK, [machine("dead", 0.1, 0.0), machine("new", 0.1, 0.0), machine("a", 0.3, 0.6)], {"new"})
    assert pool.useful == {"new", "a"}
