"""Compute when versions are where: the bound's three terms, each where it is the largest."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.provisioning.model.broadcast_time import OVER_BOUND, Link, arrival_s, quorum_s, source_s

MIB_64 = 64 * 1024 * 1024


def test_four_peers_behind_50_mbit() -> None:
    """n4 of the relay benchmark: 10.7 s is the bound."""
    links = [Link(up_mbit=50, down_mbit=50)] * 4
    assert source_s(MIB_64, 50, links) / OVER_BOUND == pytest.approx(10.74, abs=0.01)
    assert arrival_s(MIB_64, 50, links[0], links) == pytest.approx(OVER_BOUND * 10.74, abs=0.01)


def test_a_slow_line_is_slow_for_its_machine_alone() -> None:
    quick, slow = Link(up_mbit=100, down_mbit=100), Link(up_mbit=10, down_mbit=10)
    links = [quick, quick, slow]
    assert arrival_s(1e6, 100, quick, links) == pytest.approx(OVER_BOUND * 0.08)
    assert arrival_s(1e6, 100, slow, links) == pytest.approx(OVER_BOUND * 0.8)
    assert source_s(1e6, 100, links) == pytest.approx(OVER_BOUND * 0.08)


def test_machines_that_pass_nothing_on_are_a_star() -> None:
    links = [Link(up_mbit=0, down_mbit=1000)] * 8
    assert source_s(1e6, 10, links) == pytest.approx(OVER_BOUND * 8 * 0.8)


def test_installing_comes_after_it_and_takes_no_line() -> None:
    link = Link(up_mbit=10, down_mbit=10)
    without = arrival_s(1e6, 10, link, [link])
    assert arrival_s(1e6, 10, link, [link], install_s=7.5) == pytest.approx(without + 7.5)
    assert arrival_s(1e6, 10, Link(up_mbit=10, down_mbit=0), [link]) == math.inf


def test_t_bcast_is_when_ten_of_eleven_have_it() -> None:
    assert quorum_s([float(i) for i in range(11)]) == 9
    assert quorum_s([3.0, 1.0, 2.0]) == 3
    assert quorum_s([4.0]) == 4


links = st.lists(st.builds(Link, up_mbit=st.floats(0, 1e4), down_mbit=st.floats(0.1, 1e4)), min_size=1, max_size=20)


@given(links, st.floats(0.1, 1e4), st.floats(1, 1e12))
def test_nobody_is_faster_than_any_term_of_the_bound(pool: list[Link], source_mbit: float, size: float) -> None:
    for link in pool:
        seconds = arrival_s(size, source_mbit, link, pool) / OVER_BOUND * (1 + 1e-9)
        mbit = 8 * size / 1e6
        assert seconds >= mbit / source_mbit
        assert seconds >= mbit / link.down_mbit
        assert seconds * (source_mbit + sum(one.up_mbit for one in pool)) >= len(pool) * mbit * (1 - 1e-9)
        assert source_s(size, source_mbit, pool) <= OVER_BOUND * seconds
