"""Whose turn it is: trials, starts, and who has earned a rest."""

from __future__ import annotations

from dataclasses import replace

from learner.provisioning.activation import PLAN_STANDS_S, Candidate
from learner.provisioning.pace import STAYS_REVIEWS, STAYS_STARTS, TRIED_AGAIN_S
from learner.provisioning.turns import Turns

REVIEW_S = 10.0
ONE = Candidate(name="one", price=1.0, rate=1.0, broadcast_s=50.0, generation_s=10.0, start_s=100.0)


def test_it_supplies_once_it_has_started() -> None:
    turns = Turns(REVIEW_S)
    turns.begin(ONE, 0.0)
    assert turns.on == {"one"}
    assert not turns.supplies("one", 99.0)
    assert turns.supplies("one", 100.0)
    assert not turns.supplies("two", 100.0)


def test_a_start_that_is_quicker_than_thought_is_believed_and_a_slower_one_is_not() -> None:
    turns = Turns(REVIEW_S)
    turns.begin(ONE, 0.0)
    turns.follow(20.0, [replace(ONE, start_s=10.0)])
    turns.follow(25.0, [replace(ONE, start_s=500.0)])
    assert not turns.supplies("one", 29.0)
    assert turns.supplies("one", 30.0)


def test_who_left_is_counted_once() -> None:
    turns = Turns(REVIEW_S)
    turns.begin(ONE, 0.0)
    assert turns.follow(10.0, []) == 1
    assert turns.follow(20.0, []) == 0
    assert turns.on == frozenset()


def test_a_trial_ends_after_start_journey_and_two_rollouts() -> None:
    turns = Turns(REVIEW_S)
    turns.begin(ONE, 0.0)
    over_s = 100.0 + turns.trial_s(ONE)
    assert over_s == 100.0 + 200.0 + 50.0 + 20.0
    assert turns.end_trials(over_s - 1, [ONE], {"one"}) == []
    assert turns.end_trials(over_s, [ONE], {"one"}) == [("one", over_s)]
    assert turns.on == frozenset()
    assert turns.failed_s == {"one": over_s}


def test_a_failed_trial_is_remembered_for_an_hour_also_of_who_left() -> None:
    turns = Turns(REVIEW_S)
    turns.begin(ONE, 0.0)
    turns.end_trials(1000.0, [ONE], {"one"})
    turns.follow(1010.0, [])
    turns.end_trials(1010.0, [], set())
    assert "one" in turns.failed_s
    turns.end_trials(1000.0 + TRIED_AGAIN_S, [ONE], {"one"})
    assert turns.failed_s == {}


def test_who_delivers_after_all_is_no_failure() -> None:
    turns = Turns(REVIEW_S)
    turns.begin(ONE, 0.0)
    turns.end_trials(1000.0, [ONE], {"one"})
    turns.end_trials(1010.0, [ONE], set())
    assert turns.failed_s == {}


def test_it_stays_until_its_start_was_worth_it_unless_it_supplies_nothing() -> None:
    turns = Turns(REVIEW_S)
    turns.begin(ONE, 0.0)
    assert not turns.may_end(ONE, STAYS_STARTS * 100.0 - 1)
    assert turns.may_end(ONE, STAYS_STARTS * 100.0)
    assert turns.may_end(replace(ONE, rate=0.0), 1.0)
    quick = replace(ONE, name="quick", start_s=0.0)
    turns.begin(quick, 0.0)
    assert not turns.may_end(quick, STAYS_REVIEWS * REVIEW_S - 1)
    assert turns.may_end(quick, STAYS_REVIEWS * REVIEW_S)


def test_a_release_is_remembered_as_long_as_a_plan_stands() -> None:
    turns = Turns(REVIEW_S)
    turns.begin(ONE, 0.0)
    turns.release("one", 500.0)
    turns.follow(499.0 + PLAN_STANDS_S, [ONE])
    assert turns.released_s == {"one": 500.0}
    turns.follow(500.0 + PLAN_STANDS_S, [ONE])
    assert turns.released_s == {}
