"""Passes over a finite task: which problems sit out, in which order, within which bounds."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.curriculum.epochs import MOST_RIGHT, MOST_WRONG, SCAN, STATE_CHARS, TRACKED, PassCursor


def take_pass(cursor: PassCursor, rates: dict[int, float] | None = None) -> list[int]:
    """The problems of the pass that comes next, each answered with its rate, if it has one there."""
    first = cursor.next_index()
    number, taken = first // cursor.size, []
    index = first
    while index // cursor.size == number:
        problem = index % cursor.size
        taken.append(problem)
        if rates and problem in rates:
            cursor.observe(index, rates[problem])
        before = json.loads(json.dumps(cursor.state()))
        index = cursor.next_index()
    cursor.restore(before)
    return taken


def visits(rate: float, passes: int = 60) -> list[int]:
    """In which passes a problem of that pass rate is asked, beside one whose groups always teach."""
    cursor = PassCursor(size=2, seed="s")
    asked = []
    for number in range(passes):
        if 0 in take_pass(cursor, {0: rate, 1: 0.5}):
            asked.append(number)
    return asked


def test_each_pass_asks_every_problem_once_in_an_order_of_its_own() -> None:
    cursor = PassCursor(size=50, seed="s")
    first, second = take_pass(cursor), take_pass(cursor)
    assert sorted(first) == sorted(second) == list(range(50))
    assert first != second
    assert take_pass(PassCursor(size=50, seed="s")) == first
    assert take_pass(PassCursor(size=50, seed="t")) != first


def test_what_is_all_right_comes_back_later_and_later_what_is_all_wrong_sooner_and_the_middle_always() -> None:
    assert visits(1.0)[:6] == [0, 2, 6, 14, 30, 30 + MOST_RIGHT]
    assert visits(0.0)[:5] == [0, 2, 2 + MOST_WRONG, 2 + 2 * MOST_WRONG, 2 + 3 * MOST_WRONG]
    assert visits(0.5) == list(range(60))


def test_one_visit_inside_the_band_forgets_the_streak() -> None:
    cursor = PassCursor(size=2, seed="s")
    rates = {1: 0.5, 0: 1.0}
    assert [len(take_pass(cursor, rates)) for _ in range(3)] == [2, 1, 2]
    rates[0] = 0.9
    while 0 not in take_pass(cursor, rates):
        pass
    rates[0] = 1.0
    assert [0 in take_pass(cursor, rates) for _ in range(3)] == [True, False, True], "as after the first time"


def test_the_band_decides_who_sits_out() -> None:
    cursor = PassCursor(size=3, seed="s", low=0.2, high=0.8)
    rates = {0: 0.2, 1: 0.5, 2: 0.8}
    assert len(take_pass(cursor, rates)) == 3
    assert take_pass(cursor, rates) == [1]


def test_a_pass_in_which_all_sit_out_is_left_out() -> None:
    cursor = PassCursor(size=4, seed="s")
    rates = dict.fromkeys(range(4), 1.0)
    for _ in range(9):
        assert sorted(take_pass(cursor, rates)) == [0, 1, 2, 3]


def test_easy_first_goes_by_what_was_known_when_the_pass_began() -> None:
    cursor = PassCursor(size=4, seed="s", easy_first=True)
    take_pass(cursor, {0: 0.1, 1: 0.9, 2: 0.3})
    assert take_pass(cursor, {0: 0.95}) == [1, 3, 2, 0], "number 3 is not known, so it counts as half right"
    assert take_pass(cursor) == [0, 1, 3, 2]


def test_what_was_measured_before_orders_the_first_pass_and_leaves_out_what_is_beyond_the_band() -> None:
    priors = [0.2, math.nan, 1.0, 0.7]
    cursor = PassCursor(size=4, seed="s", easy_first=True, priors=priors)
    assert take_pass(cursor) == [3, 1, 0]
    assert take_pass(cursor) == [2, 3, 1, 0]
    assert len(take_pass(PassCursor(size=1, seed="s", priors=[0.0]))) == 1


@given(
    st.integers(1, 12), st.booleans(), st.lists(st.tuples(st.floats(0, 1), st.integers(0, 3)), max_size=120), st.data()
)
def test_a_restored_cursor_goes_on_alike_and_gives_no_index_twice(
    size: int, easy_first: bool, said: list[tuple[float, int]], data: st.DataObject
) -> None:
    cursor = PassCursor(size=size, seed="s", easy_first=easy_first)
    given_out: list[int] = []
    for rate, late in said:
        given_out.append(cursor.next_index())
        if late < len(given_out):  # groups come back out of order, and some never
            cursor.observe(given_out[-1 - late], rate)
    restored = PassCursor(size=size, seed="s", easy_first=easy_first)
    restored.restore(json.loads(json.dumps(cursor.state())))
    following = [cursor.next_index() for _ in range(30)]
    assert [restored.next_index() for _ in range(30)] == following
    assert [restored.expected(problem) for problem in range(size)] == [cursor.expected(p) for p in range(size)]
    assert len({*given_out, *following}) == len(given_out) + 30


def test_memory_and_state_are_bounded_whatever_the_size() -> None:
    cursor = PassCursor(size=4 * TRACKED, seed="s", easy_first=True)
    random = np.random.default_rng(0)
    for problem, rate in enumerate(random.random(5000)):
        cursor.observe(problem * 800, float(rate))
    assert len(json.dumps(cursor.state())) < STATE_CHARS
    cursor._rates = random.integers(0, 255, TRACKED, np.uint8)
    cursor._due = random.integers(0, 65535, TRACKED, np.uint16)
    cursor._streaks, cursor._ranks = cursor._rates[::-1].copy(), cursor._rates.copy()
    assert len(json.dumps(cursor.state())) < STATE_CHARS
    assert cursor.next_index() >= 0


def test_what_is_expected_of_a_problem_is_the_best_that_was_seen_of_it() -> None:
    cursor = PassCursor(size=4, seed="s", priors=[0.5, math.nan, 1.0, math.nan])
    assert [cursor.expected(index) for index in range(4)] == [pytest.approx(0.5, abs=0.01), None, 1.0, None]
    for number, rate in enumerate((0.25, 0.75, 0.0)):
        cursor.observe(4 * number + 1, rate)
    assert cursor.expected(1) == cursor.expected(9) == pytest.approx(0.75, abs=0.01)
    assert PassCursor(size=4 * TRACKED, seed="s").expected(2 * TRACKED) is None, (
        "problems beyond the tracked ones have no estimate"
    )


def test_a_state_of_before_the_best_was_kept_is_taken() -> None:
    cursor = PassCursor(size=2, seed="s")
    cursor.observe(0, 1.0)
    cursor.observe(0, 0.5)
    old = {name: value for name, value in cursor.state().items() if name != "best"}
    restored = PassCursor(size=2, seed="s")
    restored.restore(old)
    assert [restored.expected(0), restored.expected(1)] == [0.5, None]


def test_a_damaged_state_is_refused() -> None:
    state = PassCursor(size=4, seed="s").state()
    for rates in ("", "AAAA", PassCursor(size=5, seed="s").state()["rates"]):
        with pytest.raises(ValueError, match="packed values"):
            PassCursor(size=4, seed="s").restore({**state, "rates": rates})


@given(st.integers(1, 12), st.lists(st.sampled_from([0.0, 0.5, 1.0]), max_size=60), st.booleans())
def test_what_comes_next_is_told_before_and_telling_changes_nothing(
    size: int, rates: list[float], easy_first: bool
) -> None:
    cursor = PassCursor(size=size, seed="s", easy_first=easy_first)
    for rate in rates:
        cursor.observe(cursor.next_index(), rate)
    before = json.dumps(cursor.state())
    told = cursor.upcoming(20)
    assert json.dumps(cursor.state()) == before
    assert [cursor.next_index() for _ in range(20)] == told


def test_of_a_long_task_the_next_pass_is_told_when_this_one_is_over() -> None:
    cursor = PassCursor(size=SCAN + 1, seed="s")
    for _ in range(SCAN - 1):
        cursor.next_index()
    assert len(cursor.upcoming(8)) == 2
    cursor.next_index()
    cursor.next_index()
    told = cursor.upcoming(8)
    assert len(told) == 8
    assert {index // cursor.size for index in told} == {1}
    assert [cursor.next_index() for _ in range(8)] == told
