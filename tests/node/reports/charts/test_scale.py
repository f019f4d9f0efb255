"""Axes and curves: round numbers inside, and thinned curves of the same shape."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.reports.charts.scale import ceiling, compact, smoothed, thinned, ticks, time_unit

numbers = st.floats(1e-6, 1e9)


@given(st.floats(-1e6, 1e6), numbers, st.integers(2, 12))
def test_ticks_are_round_inside_and_not_too_many(low: float, width: float, most: int) -> None:
    high = low + width
    if not high > low:
        return
    found = ticks(low, high, most)
    slack = 1e-6 * max(abs(low), abs(high), width)
    assert len(found) <= most
    assert found == sorted(set(found))
    assert all(low - slack <= value <= high + slack for value in found)


@given(numbers, st.integers(2, 8))
def test_an_axis_shows_its_largest_value_and_little_more(value: float, most: int) -> None:
    top = ceiling(value, most)
    assert value * (1 - 1e-9) <= top <= value * 2.5 + 1e-12
    assert math.isclose(ticks(0.0, top, most)[-1], top)


def test_nothing_at_all_still_has_an_axis() -> None:
    assert ceiling(0.0, 5) == 1.0
    assert ticks(3.0, 3.0, 5) == [3.0]


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e3, 1e3)), min_size=3, max_size=90).map(sorted),
    st.integers(4, 12),
)
def test_a_thinned_curve_keeps_its_ends_its_order_and_its_range(points: list[tuple[float, float]], limit: int) -> None:
    found = thinned(points, limit)
    assert len(found) <= limit
    if len(points) <= limit:
        assert list(found) == points
        return
    assert (found[0], found[-1]) == (points[0], points[-1])
    assert [x for x, _ in found] == sorted(x for x, _ in found)
    values = [y for _, y in points]
    assert all(min(values) - 1e-9 <= y <= max(values) + 1e-9 for _, y in found)


def test_the_largest_is_kept_where_it_is_asked_for() -> None:
    points = [(float(x), 0.0) for x in range(1000)]
    points[500] = (500.0, 9.0)
    assert max(y for _, y in thinned(points, 20, take=max)) == 9.0
    assert max(y for _, y in thinned(points, 20)) < 1.0


def test_smoothing_takes_the_mean_of_the_neighbours() -> None:
    points = [(float(x), float(x % 2)) for x in range(100)]
    found = smoothed(points)
    assert [x for x, _ in found] == [x for x, _ in points]
    assert all(0.3 < y < 0.7 for _, y in found)
    assert smoothed([]) == ()
    assert smoothed([(1.0, 2.0)]) == ((1.0, 2.0),)


@pytest.mark.parametrize(
    ("value", "written"),
    [(0, "0"), (0.25, "0.25"), (250, "250"), (1500, "1,500"), (15_000, "15k"), (2_500_000, "2.5M"), (3e9, "3G")],
)
def test_numbers_beside_an_axis_are_short(value: float, written: str) -> None:
    assert compact(value) == written


@pytest.mark.parametrize(("wall_s", "unit"), [(150, "s"), (3000, "min"), (36_000, "h"), (1e6, "d"), (1e9, "d")])
def test_time_has_a_unit_that_fits(wall_s: float, unit: str) -> None:
    assert time_unit(wall_s).name == unit
