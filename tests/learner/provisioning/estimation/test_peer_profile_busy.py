"""Each moment of work counts once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.provisioning.estimation.peer_profile import SPELLS, BusyTime


@pytest.mark.parametrize(
    ("spells", "added"),
    [
        ([(0, 10), (0, 10)], [10, 0]),  # two leases of one batch
        ([(0, 10), (0, 11), (10, 20)], [10, 1, 9]),  # the next batch began before the last record of the one before
        ([(0, 10), (50, 60)], [10, 10]),  # idle between
        ([(10, 20), (50, 60), (0, 100)], [10, 10, 80]),  # one that went on all the while
    ],
)
def test_what_overlaps_counts_once(spells: list[tuple[float, float]], added: list[float]) -> None:
    busy = BusyTime()
    assert [busy.add(start, end) for start, end in spells] == added


@given(st.lists(st.tuples(st.integers(0, 200), st.integers(0, 200)), max_size=SPELLS))
def test_the_sum_is_the_length_of_the_union(pairs: list[tuple[int, int]]) -> None:
    spells = sorted(((min(pair), max(pair)) for pair in pairs), key=lambda spell: spell[1])
    busy = BusyTime()
    total = sum(busy.add(start, end) for start, end in spells)
    assert total == len({second for start, end in spells for second in range(start, end)})
