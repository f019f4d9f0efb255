"""Predict how long completions will be from earlier ones, and say when no prediction is possible."""

from __future__ import annotations

import random

import pytest

from learner.scheduling.completion_lengths import KNOWN_GROUPS, CompletionLengths

PROBLEMS = 20


def lengths(**options: int) -> CompletionLengths:
    """Return the lengths of a task of PROBLEMS problems, all of one kind."""
    return CompletionLengths(alike=lambda index: (index % PROBLEMS, 0), **options)


def taught(passes: int = 3) -> CompletionLengths:
    """Problem n has completions of up to 100 (n + 1) tokens."""
    known = lengths()
    for index in range(passes * PROBLEMS):
        known.observe(index, [10, 100 * (index % PROBLEMS + 1)])
    return known


def test_before_anything_was_admitted_all_are_alike() -> None:
    known = lengths()
    assert not known.can_tell
    assert known.relative(3, 5) == 1.0
    known.observe(3, [])
    assert known.usual == 0.0


def test_a_problem_that_comes_again_is_about_as_long_as_it_was() -> None:
    known = taught()
    assert known.can_tell
    told = [known.relative(7 * PROBLEMS + problem, 5) for problem in range(PROBLEMS)]
    assert told == sorted(told)
    assert told[-1] == pytest.approx(2000 / known.usual)


def test_the_newest_group_counts_for_half() -> None:
    known = lengths()
    known.observe(0, [100])
    known.observe(0, [300])
    assert known.foretold(0, None) == 200.0
    known.observe(0, [400])
    assert known.foretold(0, None) == 300.0


def test_who_is_new_is_as_long_as_others_of_its_size_and_level() -> None:
    """Problems never come twice; level 1 is longer, and so are answers to long prompts."""
    known = CompletionLengths(alike=lambda index: (index, index % 2))
    for index in range(60):
        level, prompt = index % 2, 8 if index % 4 < 2 else 64
        known.observe(index, [100 + 400 * level + 10 * prompt], prompt)
    assert known.foretold(1000, 8) == pytest.approx(180)
    assert known.foretold(1001, 64) == pytest.approx(1140)
    assert 180 < known.foretold(1000, 999) < 740, "a size that was not seen yet: what is usual of the level"
    assert known.can_tell


def test_lengths_that_are_all_alike_are_no_reason_to_sort() -> None:
    known = lengths()
    for index in range(10 * PROBLEMS):
        known.observe(index, [200, 190 + index % PROBLEMS])
    assert not known.can_tell


def test_lengths_that_say_nothing_of_the_next_are_no_reason_to_sort() -> None:
    known, dice = lengths(), random.Random(1)
    for index in range(30 * PROBLEMS):
        known.observe(index, [dice.choice((100, 1000))])
    assert not known.can_tell
    assert known.relative(0, 5) == 1.0


def test_it_is_not_said_before_enough_was_foretold() -> None:
    known = lengths()
    for index in range(KNOWN_GROUPS):
        known.observe(index % 2, [100 + 900 * (index % 2)])
        assert not known.can_tell
    known.observe(0, [100])
    assert known.can_tell


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    known = CompletionLengths(alike=lambda index: (index, 0), problems=3)
    for index in range(5):
        known.observe(index, [100 * (index + 1)])
    assert [known.foretold(index, None) for index in (2, 3, 4)] == [300, 400, 500]
    assert known.foretold(0, None) == known.usual or known.foretold(0, None) != 100


def test_a_restart_knows_what_the_ledger_says() -> None:
    known, again = taught(), lengths()
    again.observe(0, [9999])
    again.recover([(index, [10, 100 * (index % PROBLEMS + 1)]) for index in range(3 * PROBLEMS)])
    assert again.usual == known.usual
    assert again.can_tell
    assert [again.relative(n, 5) for n in range(PROBLEMS)] == [known.relative(n, 5) for n in range(PROBLEMS)]
