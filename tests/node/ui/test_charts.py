"""Small pictures out of characters."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from node.ui.charts import BLOCKS, bar, chart, clock, divided, lag_line, sparkline


@pytest.mark.parametrize(("seconds", "shown_as"), [(0, "00:00"), (75.9, "01:15"), (3661, "1:01:01")])
def test_clock(seconds: float, shown_as: str) -> None:
    assert clock(seconds) == shown_as


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
@example([0.0, 5e-324])
def test_a_sparkline_rises_with_its_values(values: list[float]) -> None:
    line = sparkline(values)
    assert len(line) == len(values)
    heights = [BLOCKS.index(block) for block in line]
    ordered = sorted(zip(values, heights, strict=True))
    assert [height for _, height in ordered] == sorted(heights)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60), st.integers(1, 8))
def test_a_chart_has_columns_of_blocks_without_gaps(values: list[float], height: int) -> None:
    rows = chart(values, height)
    assert [len(row) for row in rows] == [len(values)] * height
    heights = []
    for column in zip(*reversed(rows), strict=True):
        filled = "".join(column).rstrip(" ")
        assert " " not in filled
        assert set(filled[:-1]) <= {"█"}, "only the top of a column may be a part of a block"
        heights.append(8 * (len(filled) - 1) + BLOCKS.index(filled[-1]) + 1)
    assert max(heights) == (8 * height if max(values) > min(values) else 1)
    ordered = sorted(zip(values, heights, strict=True))
    assert [tall for _, tall in ordered] == sorted(heights)


@given(st.floats(-1, 2), st.integers(1, 40))
def test_a_bar_has_its_width(share: float, width: int) -> None:
    assert len(bar(share, width)) == width


@given(st.lists(st.integers(0, 100), min_size=2, max_size=5).filter(any), st.integers(1, 60))
def test_a_divided_bar_is_as_wide_as_asked(weights: list[int], width: int) -> None:
    shares = [weight / sum(weights) for weight in weights]
    cells = divided(shares, width)
    assert sum(cells) == width
    assert all(abs(got - share * width) <= 1 for got, share in zip(cells, shares, strict=True))


def test_lags_beyond_the_shown_are_added_up() -> None:
    assert lag_line({0: 1, 7: 2, 9: 1}, shown=2) == "0 ▃ 25%  1 ▁ 0%  2+ ▆ 75%"
    assert lag_line({}) == "no rollout yet"
