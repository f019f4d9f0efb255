"""Elements are found by their number, and numbered by their place, as a list of all of them says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.patches.subset import Subset, differences, places_of
from tests.support.examples import examples

marked = st.tuples(
    st.integers(1, 2_000) | st.sampled_from([7, 8, 63, 64, 65, 512]),
    st.sampled_from([0.0, 0.005, 0.125, 0.5, 1.0]),
    st.integers(0, 2**32),
)
"""Length, share of the elements, seed."""


@settings(max_examples=examples(200), deadline=None)
@given(marked)
def test_numbers_and_places_are_those_of_a_list_of_all(case: tuple[int, float, int]) -> None:
    length, share, seed = case
    rng = np.random.default_rng(seed)
    marks = rng.random(length) < share
    places = np.flatnonzero(marks)
    subset = Subset(marks)
    some = np.flatnonzero(rng.random(len(places)) < rng.choice([0.01, 0.3, 1.0]))
    marks[:] = False  # they may be changed afterwards
    assert subset.count == len(places)
    assert subset.all_places().tolist() == places.tolist()
    assert subset.places(some).tolist() == places[some].tolist()
    assert subset.numbers(places[some]).tolist() == some.tolist()
    everywhere = np.arange(length)
    assert everywhere[subset.holds(everywhere)].tolist() == places.tolist()


@pytest.mark.parametrize("dtype", ["<i1", "<i2", "<i4", "<i8"])
@settings(max_examples=examples(100), deadline=None)
@given(marked)
def test_differences_are_found_by_words_and_by_elements(dtype: str, case: tuple[int, float, int]) -> None:
    length, share, seed = case
    rng = np.random.default_rng(seed)
    old = rng.integers(-100, 100, length).astype(dtype)
    new = old + (rng.random(length) < share).astype(dtype)
    places = differences(old, new, np.empty(length + 3, np.bool_))
    assert places.tolist() == np.flatnonzero(old != new).tolist()
    assert places_of(old != new, len(places)).tolist() == places.tolist()
