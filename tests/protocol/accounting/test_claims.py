"""Money as integers: exact sums, one rounding."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from protocol.accounting.claims import MICROS, Price, cost_micros, per_thousand_tokens

SECONDS = st.floats(0, 1e6, allow_nan=False)
RATES = st.integers(0, 10**9)


def test_an_hour_costs_the_price() -> None:
    assert cost_micros(3600, Price(micros_per_hour=350_000)) == 350_000
    assert cost_micros(1, Price(micros_per_hour=3_600_000)) == 1000
    assert cost_micros(1e6, Price()) == 0


@given(SECONDS, RATES)
def test_cost_is_within_half_a_micro_of_the_truth(seconds: float, rate: int) -> None:
    exact = Fraction(seconds) * rate / 3600
    # One rounding to a whole micro, after float arithmetic that is good to a part in 2**51.
    assert abs(cost_micros(seconds, Price(micros_per_hour=rate)) - exact) <= Fraction(1, 2) + exact / 2**51


@given(SECONDS, SECONDS, RATES)
def test_longer_never_costs_less(one: float, two: float, rate: int) -> None:
    price = Price(micros_per_hour=rate)
    assert cost_micros(min(one, two), price) <= cost_micros(max(one, two), price)


def test_per_thousand_tokens() -> None:
    assert per_thousand_tokens(2 * MICROS, 4000) == 0.5
    assert per_thousand_tokens(5, 0) is None
