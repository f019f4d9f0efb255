"""The pace of a run: a median, and nothing of the time between two starts."""

from __future__ import annotations

from node.ui.pace import MOMENTS, Pace


def paced(*taken: tuple[float, int]) -> Pace:
    pace = Pace()
    for at_s, step in taken:
        pace.take(at_s, step)
    return pace


def test_there_is_no_pace_before_the_second_step() -> None:
    assert paced().step_s is None
    assert paced((1.0, 1)).left_s(1, 10) is None


def test_one_long_pause_moves_nothing() -> None:
    pace = paced(*((2.0 * step + 100 * (step > 7), step) for step in range(1, 11)))
    assert pace.step_s == 2.0
    assert pace.left_s(10, 60) == 100.0
    assert pace.left_s(60, 60) == 0.0
    assert pace.left_s(10, 0) is None, "a run without an end"


def test_a_coarse_clock_gives_no_steps_without_duration() -> None:
    assert paced((0.0, 1), (0.5, 2), (0.5, 3), (1.0, 4), (1.0, 5), (1.5, 6), (1.5, 7)).step_s == 0.25


def test_steps_that_a_restart_took_back_count_no_more() -> None:
    assert paced((0.0, 1), (1.0, 2), (2.0, 3), (50.0, 2), (55.0, 3)).step_s == 5.0
    pace = paced((0.0, 1), (1.0, 2))
    pace.begin_again()
    assert pace.step_s is None


def test_it_stays_bounded() -> None:
    pace = paced(*((float(step) if step < 1000 else 3.0 * step, step) for step in range(1, 1100)))
    assert pace.step_s == 3.0
    assert len(pace._moments) == MOMENTS
