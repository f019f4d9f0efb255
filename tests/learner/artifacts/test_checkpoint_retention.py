"""Keep checkpoints: the newest always, and milestones beyond them within their bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.artifacts.checkpoint_retention import Keep, KeptFor, checkpoints_of, chosen


def run(keep: Keep, last: int, scores: dict[int, float] | None = None, step: int = 1) -> list[int]:
    """The checkpoints that a run has at its end, one of every `step` steps being written; evaluated when they were."""
    kept: list[int] = []
    for now in range(step, last + 1, step):
        known = {at: score for at, score in (scores or {}).items() if at <= now}
        kept = sorted(chosen([*kept, now], keep, known))
    return kept


@pytest.mark.parametrize(
    ("keep", "kept"),
    [
        (Keep(newest=2), [399, 400]),
        (Keep(newest=2, every=100), [399, 400]),  # no milestones are allowed
        (Keep(newest=2, every=100, most=4), [100, 200, 300, 399, 400]),
        (Keep(newest=2, every=100, most=2), [200, 300, 399, 400]),
        (Keep(newest=1, every=400, most=2), [400]),
        (Keep(newest=3, best=1, most=4), [220, 398, 399, 400]),
        (Keep(newest=2, every=100, best=2, most=3), [120, 220, 300, 399, 400]),
        (Keep(newest=2, every=100, best=9, most=2), [120, 220, 399, 400]),
    ],
)
def test_what_is_left_of_a_run(keep: Keep, kept: list[int]) -> None:
    scores = {20: 0.2, 120: 0.8, 220: 0.9, 320: 0.7}
    assert run(keep, 400, scores) == kept


def test_a_slow_disk_has_its_milestones_a_little_later() -> None:
    """Every seventh step there is one; 120 was evaluated, and the next that could be written is 126."""
    assert run(Keep(newest=1, every=100, best=1, most=4), 400, {120: 0.9, 200: 0.1}, step=7) == [
        105,
        126,
        203,
        301,
        399,
    ]


def test_a_checkpoint_stands_for_one_evaluation() -> None:
    assert checkpoints_of([5, 12, 30], [0, 4, 6, 10, 20]) == {4: 5, 10: 12, 20: 30}
    assert checkpoints_of([], [4]) == checkpoints_of([3], []) == {}
    assert checkpoints_of([3], [4]) == {}, "it was made before"


def test_what_is_being_evaluated_waits_for_its_score_beyond_the_bound() -> None:
    keep = Keep(newest=2, best=1, most=1)
    assert chosen([10, 20, 21, 22], keep, {10: 0.5}, {20}) == {
        22: KeptFor.NEWEST, 21: KeptFor.NEWEST, 20: KeptFor.EVALUATED, 10: KeptFor.BEST,
    }  # fmt: skip
    assert sorted(chosen([10, 20, 21, 22], keep, {10: 0.5, 20: 0.4})) == [10, 21, 22]
    assert sorted(chosen([10, 20, 21, 22], keep, {10: 0.5, 20: 0.6})) == [20, 21, 22]
    assert sorted(chosen([10, 20, 21, 22], keep, {10: 0.5, 20: 0.5})) == [10, 21, 22], "the first of equals stays"
    never = Keep(newest=2, every=10, most=1)
    assert sorted(chosen([10, 20, 21, 22], never, {}, {20})) == [20, 21, 22], (
        "without `best`, no checkpoint may wait for its score"
    )


def test_the_least_wanted_comes_last() -> None:
    keep = Keep(newest=2, every=10, best=1, most=9)
    assert [*chosen([10, 20, 25, 30, 41, 42], keep, {25: 0.9})] == [42, 41, 25, 30, 20, 10]


keeps = st.builds(
    Keep, newest=st.integers(1, 4), every=st.integers(0, 30), best=st.integers(0, 4), most=st.integers(0, 5)
)
marks = st.dictionaries(st.integers(0, 300), st.floats(0, 1), max_size=12)


@given(st.sets(st.integers(1, 300), max_size=40), keeps, marks, st.sets(st.integers(0, 300), max_size=2))
def test_the_bounds_hold_and_choosing_again_changes_nothing(
    steps: set[int], keep: Keep, scores: dict[int, float], evaluating: set[int]
) -> None:
    stay = chosen(steps, keep, scores, evaluating)
    assert stay.keys() <= steps
    newest = sorted(steps)[-keep.newest :]
    assert {step for step, why in stay.items() if why is KeptFor.NEWEST} == set(newest)
    milestones = [step for step, why in stay.items() if why in (KeptFor.BEST, KeptFor.EVERY)]
    assert len(milestones) <= keep.most
    assert len(stay) <= keep.newest + keep.most + len(evaluating)
    assert chosen(stay, keep, scores, evaluating).keys() == stay.keys(), "a restart finds the same"
