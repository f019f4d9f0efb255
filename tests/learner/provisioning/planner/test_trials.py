"""Track trials and starts of peers, and which ones have earned a rest."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from learner.provisioning.model.machine_selection import PLAN_STANDS_S, Candidate
from learner.provisioning.planner.constants import KEPT_REVIEWS, KEPT_STARTS, TRIED_AGAIN_S
from learner.provisioning.planner.trials import TrialTracker

REVIEW_S = 10.0
ONE = Candidate(name="one", price=1.0, rate=1.0, broadcast_s=50.0, generation_s=10.0, start_s=100.0)
OTHER = replace(ONE, name="other")
"""Delivers what it promises, so that what others fail to deliver is their own fault."""
TRAIN_S = 30.0


def end_trials(
    turns: TrialTracker, now_s: float, *candidates: Candidate, unproven: Iterable[str] = ("one",)
) -> list[str]:
    """Whose trial ended in vain."""
    return [name for name, _ in turns.end_trials(now_s, candidates, set(unproven), train_s=TRAIN_S)]


def test_it_supplies_once_it_has_started() -> None:
    turns = TrialTracker(REVIEW_S)
    turns.begin(ONE, 0.0)
    assert turns.active == {"one"}
    assert not turns.supplies("one", 99.0)
    assert turns.supplies("one", 100.0)
    assert not turns.supplies("two", 100.0)


def test_a_start_that_is_quicker_than_thought_is_believed_and_a_slower_one_is_not() -> None:
    turns = TrialTracker(REVIEW_S)
    turns.begin(ONE, 0.0)
    turns.follow(20.0, [replace(ONE, start_s=10.0)])
    turns.follow(25.0, [replace(ONE, start_s=500.0)])
    assert not turns.supplies("one", 29.0)
    assert turns.supplies("one", 30.0)


def test_who_left_is_counted_once() -> None:
    turns = TrialTracker(REVIEW_S)
    turns.begin(ONE, 0.0)
    assert turns.follow(10.0, []) == 1
    assert turns.follow(20.0, []) == 0
    assert turns.active == frozenset()


def test_a_trial_ends_after_start_step_broadcast_and_two_rollouts() -> None:
    turns = TrialTracker(REVIEW_S)
    turns.begin(ONE, 0.0)
    over_s = 100.0 + turns.trial_s(ONE, train_s=TRAIN_S)
    assert over_s == 100.0 + 200.0 + 30.0 + 50.0 + 20.0
    assert end_trials(turns, over_s - 1, ONE, OTHER) == []
    assert turns.end_trials(over_s, [ONE, OTHER], {"one"}, train_s=TRAIN_S) == [("one", over_s)]
    assert turns.active == frozenset()
    assert turns.failed_s == {"one": over_s}


def test_a_failed_trial_is_remembered_for_an_hour_also_of_who_left() -> None:
    turns = TrialTracker(REVIEW_S)
    turns.begin(ONE, 0.0)
    assert end_trials(turns, 1000.0, ONE, OTHER) == ["one"]
    turns.follow(1010.0, [OTHER])
    end_trials(turns, 1010.0, OTHER)
    assert "one" in turns.failed_s
    end_trials(turns, 999.0 + TRIED_AGAIN_S, ONE, OTHER)
    assert "one" in turns.failed_s
    end_trials(turns, 1000.0 + TRIED_AGAIN_S, ONE, OTHER)
    assert turns.failed_s == {}


def test_who_delivers_after_all_is_no_failure() -> None:
    turns = TrialTracker(REVIEW_S)
    turns.begin(ONE, 0.0)
    assert end_trials(turns, 1000.0, ONE, OTHER) == ["one"]
    end_trials(turns, 1010.0, ONE, OTHER, unproven=())
    assert turns.failed_s == {}


def test_what_nobody_has_done_is_nobodys_failure_and_trials_begin_when_somebody_has() -> None:
    turns = TrialTracker(REVIEW_S)
    turns.begin(ONE, 0.0)
    turns.begin(OTHER, 0.0)
    assert end_trials(turns, 5000.0, ONE, OTHER, unproven=("one", "other")) == []
    over_s = 5000.0 + turns.trial_s(ONE, train_s=TRAIN_S)
    assert end_trials(turns, over_s - 1, ONE, OTHER) == []
    assert end_trials(turns, over_s, ONE, OTHER) == ["one"]


def test_where_only_those_are_left_who_failed_they_are_tried_at_once() -> None:
    turns = TrialTracker(REVIEW_S)
    turns.begin(ONE, 0.0)
    assert end_trials(turns, 1000.0, ONE, OTHER) == ["one"]
    assert end_trials(turns, 1010.0, unproven=()) == []
    assert "one" in turns.failed_s, "nobody is here at all"
    assert end_trials(turns, 1020.0, ONE) == []
    assert turns.failed_s == {}


def test_it_stays_until_its_start_was_worth_it() -> None:
    turns = TrialTracker(REVIEW_S)
    turns.begin(ONE, 0.0)
    assert not turns.may_end(ONE, KEPT_STARTS * 100.0 - 1)
    assert turns.may_end(ONE, KEPT_STARTS * 100.0)
    quick = replace(ONE, name="quick", start_s=0.0)
    turns.begin(quick, 0.0)
    assert not turns.may_end(quick, KEPT_REVIEWS * REVIEW_S - 1)
    assert turns.may_end(quick, KEPT_REVIEWS * REVIEW_S)


def test_a_release_is_remembered_as_long_as_a_plan_stands() -> None:
    turns = TrialTracker(REVIEW_S)
    turns.begin(ONE, 0.0)
    turns.release("one", 500.0)
    turns.follow(499.0 + PLAN_STANDS_S, [ONE])
    assert turns.released_s == {"one": 500.0}
    turns.follow(500.0 + PLAN_STANDS_S, [ONE])
    assert turns.released_s == {}
