"""Compute how long the event loop makes tasks wait, from the lengths of its turns."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.runtime.loop_delay import EDGES_S, LEAST_S, SLOT_S, SLOTS, LoopDelay

WINDOW_S = SLOT_S * SLOTS


def waits_longer(lengths: list[float], than_s: float) -> float:
    """Seconds of a minute in which an event that comes waits longer than that."""
    return sum(max(0.0, length - than_s) for length in lengths)


@given(st.lists(st.floats(LEAST_S, 3.0), min_size=1, max_size=40))
def test_of_a_hundred_moments_ninety_nine_wait_no_longer(lengths: list[float]) -> None:
    delay = LoopDelay(began_s=0.0)
    for number, length in enumerate(lengths):
        delay.turned(length, number * 0.1)
    found = delay.figures(WINDOW_S - SLOT_S / 2)
    window_s = WINDOW_S - SLOT_S / 2
    assert found.longest_s == found.worst_s == max(lengths)
    # Lengths are told apart to 2 ** 0.25 of themselves, and the figure is rounded up.
    assert waits_longer(lengths, found.p99_s + 1e-9) <= 0.01 * window_s + 1e-9
    if found.p99_s > LEAST_S:
        assert waits_longer(lengths, found.p99_s / 2**0.25 - 1e-9) >= 0.01 * window_s - 1e-9


def test_one_long_turn_is_a_small_part_of_the_moments_and_many_are_not() -> None:
    delay = LoopDelay(began_s=0.0)
    delay.turned(0.5, 1.0)
    assert delay.figures(WINDOW_S - 1).p99_s == LEAST_S
    for _ in range(20):
        delay.turned(0.5, 2.0)
    assert 0.4 < delay.figures(WINDOW_S - 1).p99_s <= 0.5


def test_the_last_minute_forgets_and_the_start_does_not() -> None:
    delay = LoopDelay(began_s=100.0)
    delay.turned(2.0, 101.0)
    delay.stepped(1.5, 101.0)
    for now_s, remembered in ((101.0, True), (100.0 + WINDOW_S - 1, True), (100.0 + WINDOW_S + SLOT_S, False)):
        found = delay.figures(now_s, "somebody")
        assert (found.longest_s == 2.0, found.step_cpu_s == 1.5) == (remembered, remembered)
        assert (found.worst_s, found.worst_cpu_s, found.culprit) == (2.0, 1.5, "somebody")
    assert delay.figures(1e9).longest_s == 0.0


def test_what_nobody_notices_is_not_counted() -> None:
    delay = LoopDelay(began_s=0.0)
    for number in range(1000):
        delay.turned(LEAST_S / 2, number / 100)
    assert delay.figures(10.0).longest_s == delay.figures(10.0).p99_s == 0.0


@pytest.mark.parametrize("length_s", [LEAST_S, EDGES_S[-1], 1e6])
def test_every_length_has_its_place(length_s: float) -> None:
    delay = LoopDelay(began_s=0.0)
    delay.turned(length_s, 1.0)
    assert delay.figures(1.0).worst_s == length_s
