"""Bytes that wait to be read: in order, whole, and at no more memory than their number."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from swarm.transport.receive_buffer import SMALL_BYTES, Arrivals

steps = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.integers(0, 2 * SMALL_BYTES).map(bytes),
        st.integers(1, 3 * SMALL_BYTES),
    ),
    max_size=30,
)


@given(steps)
def test_what_comes_out_is_what_came_in(steps: list[bytes | int]) -> None:
    arrivals, waiting = Arrivals(), b""
    for step in steps:
        if isinstance(step, bytes):
            arrivals.put(step)
            waiting += step
        else:
            assert arrivals.take(step) == waiting[:step]
            waiting = waiting[step:]
        assert arrivals.size == len(waiting)
        assert arrivals.peek(5) == waiting[:5]


def test_nothing_is_left_after_clear() -> None:
    arrivals = Arrivals()
    arrivals.put(b"x" * 10)
    arrivals.take(3)
    arrivals.clear()
    arrivals.put(b"y")
    assert (arrivals.size, arrivals.take(10)) == (1, b"y")


def test_a_piece_that_is_read_whole_is_not_copied() -> None:
    piece = bytes(2 * SMALL_BYTES)
    arrivals = Arrivals()
    arrivals.put(piece)
    assert arrivals.take(len(piece) + 1) is piece


def test_single_bytes_cost_bytes() -> None:
    arrivals = Arrivals()
    for _ in range(10 * SMALL_BYTES):
        arrivals.put(b"x")
    assert sum(map(sys.getsizeof, arrivals._pieces)) < 11 * SMALL_BYTES
