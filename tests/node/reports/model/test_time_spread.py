"""Amounts over time: nothing is lost, nothing is made, nothing comes before its time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.reports.model.time_spread import SHORTEST_S, Piece, accumulated, divided


def piece(began_s: float, ended_s: float, amount: float) -> Piece:
    return Piece(began_s=began_s, ended_s=ended_s, amount=amount)


def test_an_amount_comes_evenly() -> None:
    assert accumulated([piece(0, 10, 100)], [-1, 0, 2.5, 10, 11]) == [0, 0, 25, 100, 100]
    assert accumulated([piece(0, 10, 100), piece(5, 5, 7), piece(8, 18, 10)], [4.9, 5, 8, 20]) == [
        pytest.approx(49), pytest.approx(57), pytest.approx(87), pytest.approx(117),
    ]  # fmt: skip
    assert accumulated([piece(-10, 10, 100)], [0]) == [50], "time before the first moment must count"


def test_what_is_divided_adds_up() -> None:
    assert divided(10, [piece(0, 3, 1)], [1, 2]) == [3, 4, 3]
    assert divided(10, [], [1]) == [10, 0]
    assert divided(10, [piece(5, 9, 0.0)], [1]) == [0, 10]
    assert divided(0, [piece(5, 9, 1.0)], [1, 7]) == [0, 0, 0]
    assert divided(7, [piece(0, 1, 1)], []) == [7]
    assert divided(7, [piece(1, 1, 1)], [1, 2]) == [0, 7, 0], "an event on a cut must count in the part after it"


PIECES = st.lists(
    st.builds(
        lambda began, length, amount: piece(began, began + length, amount),
        st.floats(-1e6, 1e6),
        st.one_of(st.just(0.0), st.floats(0, 1e6)),
        st.floats(0, 1e12),
    ),
    max_size=12,
)
CUTS = st.lists(st.floats(-2e6, 3e6), max_size=12).map(sorted)


@given(st.integers(0, 1 << 60), PIECES, CUTS)
def test_nothing_is_lost_or_made(total: int, pieces: list[Piece], cuts: list[float]) -> None:
    found = divided(total, pieces, cuts)
    assert len(found) == len(cuts) + 1
    assert sum(found) == total
    assert min(found) >= 0


@given(PIECES, CUTS)
def test_a_curve_never_falls_and_ends_at_the_sum(pieces: list[Piece], moments: list[float]) -> None:
    found = accumulated(pieces, [*moments, 1e7])
    assert found == sorted(found)
    whole = sum(one.amount for one in pieces)
    assert found[-1] == pytest.approx(whole, rel=1e-6, abs=1e-3)
    assert all(0 <= amount <= whole * (1 + 1e-6) + 1e-3 for amount in found)


@given(PIECES, CUTS)
def test_the_same_as_reckoned_piece_by_piece(pieces: list[Piece], moments: list[float]) -> None:
    def by(moment: float, one: Piece) -> float:
        if one.ended_s - one.began_s < SHORTEST_S:
            return one.amount if one.ended_s <= moment else 0.0
        return one.amount * min(1.0, max(0.0, (moment - one.began_s) / (one.ended_s - one.began_s)))

    whole = sum(one.amount for one in pieces)
    for moment, found in zip(moments, accumulated(pieces, moments), strict=True):
        assert found == pytest.approx(sum(by(moment, one) for one in pieces), rel=1e-6, abs=1e-6 * whole + 1e-3)
