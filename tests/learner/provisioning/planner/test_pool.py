"""Compute what sets of peers supply, what they cost, and which peers they could do without."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.provisioning.model.capacity import Clockwork, period_s
from learner.provisioning.model.machine_selection import MARGIN, Candidate
from learner.provisioning.planner.pool import Pool

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
    assert empty.names == frozenset()


def test_prices_add_up() -> None:
    assert POOL.price({"a", "b", "c"}) == pytest.approx(0.8)


def test_the_dearest_per_rollout_is_first_and_of_the_free_the_slowest() -> None:
    assert POOL.dearest_first(POOL.names) == ["b", "a", "d", "c"]


def test_who_could_go_leaves_the_margin_untouched() -> None:
    spared = POOL.replaceable({"a", "b", "d"}, "c")
    assert spared == ["d"]
    assert POOL.share({"a", "b", "c"}) >= MARGIN


machines = st.lists(
    st.tuples(st.sampled_from([0.0, 0.2, 0.3, 1.0]), st.floats(0, 1), st.floats(0, 400)), min_size=1, max_size=9
).map(
    lambda rows: [
        Candidate(name=f"m{i}", price=price, rate=rate, broadcast_s=delay_s, generation_s=10.0)
        for i, (price, rate, delay_s) in enumerate(rows)
    ]
)


@given(machines, st.integers(0, 1 << 9))
def test_who_could_go_is_found_one_after_the_other(pool: list[Candidate], chosen: int) -> None:
    """Each of them could, the dearest first, and nobody is passed over who could have."""
    whole = Pool(CLOCK, pool)
    name, active = pool[0].name, [one.name for i, one in enumerate(pool) if i and chosen >> i & 1]

    def expected(rounding: float) -> list[str]:
        left, gone = [*active, name], []
        for other in whole.dearest_first(active):
            if whole.share([one for one in left if one != other]) >= MARGIN + rounding:
                left.remove(other)
                gone.append(other)
        return gone

    assert whole.replaceable(active, name) in (expected(1e-9), expected(-1e-9))
