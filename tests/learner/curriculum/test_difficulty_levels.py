"""Difficulties that rise with success."""

from __future__ import annotations

import json
from itertools import islice

from hypothesis import given
from hypothesis import strategies as st

from learner.curriculum.difficulty_levels import MASTERED, REHEARSAL, WINDOW, LevelCursor
from learner.curriculum.problem_index import index_at, place_of


def take(cursor: LevelCursor, count: int) -> list[int]:
    return list(islice(iter(cursor.next_index, -1), count))


def master(cursor: LevelCursor) -> None:
    """Report full success at the level the cursor is at."""
    at_level = index_at(0, cursor.level, cursor.levels)
    for _ in range(WINDOW):
        cursor.observe(at_level, 1.0)


@given(st.integers(0, 10**12), st.integers(1, 50), st.data())
def test_indexes_are_one_to_one(ordinal: int, levels: int, data: st.DataObject) -> None:
    level = data.draw(st.integers(0, levels - 1))
    assert place_of(index_at(ordinal, level, levels), levels) == (ordinal, level)
    assert place_of(index_at(ordinal, level, levels), levels) == (ordinal, level)


def test_difficulty_rises_with_success_and_keeps_rehearsing() -> None:
    cursor = LevelCursor(levels=5)
    assert {place_of(index, 5)[1] for index in take(cursor, 40)} == {0}
    master(cursor)
    master(cursor)
    levels = [place_of(index, 5)[1] for index in take(cursor, 80)]
    assert set(levels) == {0, 1, 2}
    assert levels.count(2) == 80 - 80 // REHEARSAL


def test_difficulty_waits_for_a_full_window_of_its_own_level() -> None:
    cursor = LevelCursor(levels=5)
    for _ in range(WINDOW - 1):
        cursor.observe(0, 1.0)
    cursor.observe(1, 1.0)
    assert cursor.level == 0
    cursor.observe(0, MASTERED)
    assert cursor.level == 1


def test_little_success_changes_nothing() -> None:
    cursor = LevelCursor(levels=5)
    for _ in range(4 * WINDOW):
        cursor.observe(0, MASTERED - 0.1)
    assert cursor.level == 0


def test_the_hardest_level_is_the_last() -> None:
    cursor = LevelCursor(levels=2)
    for _ in range(5):
        master(cursor)
    assert cursor.level == 1


def test_each_level_has_a_pass_rate_of_its_own() -> None:
    cursor = LevelCursor(levels=3)
    for _ in range(4 * WINDOW):
        cursor.observe(0, 0.5)
        cursor.observe(2, 0.25)
    assert cursor.standing() == {"given": 0, "level": 0, "rate_0": 0.5, "rate_2": 0.25}


def test_what_is_expected_of_a_level_is_the_best_it_has_been() -> None:
    cursor = LevelCursor(levels=3)
    assert cursor.expected(1) is None
    for _ in range(4 * WINDOW):
        cursor.observe(1, 0.75)
    for _ in range(4 * WINDOW):
        cursor.observe(1, 0.0)
    assert cursor.rates[1] < 0.1
    assert cursor.expected(1) == cursor.expected(4) == 0.75, "a policy that falls makes no problem harder"
    assert cursor.expected(2) is None


def test_a_lucky_beginning_of_a_level_is_forgotten() -> None:
    cursor = LevelCursor(levels=2)
    for rate in [1.0, 1.0, *[0.25] * 30]:
        cursor.observe(1, rate)
    expected = cursor.expected(1)
    assert expected is not None
    assert expected < 0.5


def test_a_state_of_before_the_best_was_kept_is_taken() -> None:
    cursor = LevelCursor(levels=3)
    for _ in range(3 * WINDOW):
        cursor.observe(0, 0.5)
    old = {name: value for name, value in cursor.state().items() if name not in ("best", "seen")}
    restored = LevelCursor(levels=3)
    restored.restore(json.loads(json.dumps(old)))
    assert restored.expected(0) == 0.5
    restored.observe(0, 0.9)
    assert restored.expected(0) == restored.rates[0] < 0.52, "one group weighs no more than in a long memory"


@given(st.lists(st.floats(0, 1), max_size=150))
def test_a_restored_cursor_goes_on_alike_and_never_repeats(rates: list[float]) -> None:
    cursor = LevelCursor(levels=5)
    seen: list[int] = []
    for rate in rates:
        seen.append(cursor.next_index())
        cursor.observe(seen[-1], rate)
    restored = LevelCursor(levels=5)
    restored.restore(json.loads(json.dumps(cursor.state())))
    assert restored == cursor
    following = take(restored, 30)
    assert following == take(cursor, 30)
    assert len({*seen, *following}) == len(seen) + 30
