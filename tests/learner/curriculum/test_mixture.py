"""Draw among tasks: their shares, and the restored state."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.curriculum.difficulty_levels import LevelCursor
from learner.curriculum.epochs import PassCursor
from learner.curriculum.mixture import Curriculum, OtherTask, Part, Shares
from learner.curriculum.problem_index import place_of

weights = st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=8)


@given(weights, st.integers(0, 200), st.integers(1, 400))
def test_shares_converge_from_whatever_point_on_one_counts(chosen: list[float], skipped: int, draws: int) -> None:
    shares = Shares.of(chosen)
    for _ in range(skipped):
        shares.draw()
    counts = Counter(shares.draw() for _ in range(draws))
    for number, weight in enumerate(chosen):
        assert abs(counts[number] - draws * weight / sum(chosen)) < len(chosen) + 1e-6


def test_equal_weights_take_turns_and_none_comes_in_runs() -> None:
    shares = Shares.of([5, 1, 1])
    assert [shares.draw() for _ in range(14)] == [0, 0, 1, 0, 2, 0, 0] * 2


def mixture(chosen: list[float]) -> Curriculum:
    cursors = [PassCursor(size=5 + n, seed=f"{n}") if n % 2 else LevelCursor(levels=2) for n in range(len(chosen))]
    return Curriculum(
        parts=[
            Part(name=f"task {n}", fingerprint=f"f{n}", weight=weight, cursor=cursor)
            for n, (weight, cursor) in enumerate(zip(chosen, cursors, strict=True))
        ]
    )


@given(weights, st.lists(st.floats(-1, 2), max_size=80))
def test_a_restored_curriculum_gives_the_very_same_indexes(chosen: list[float], rewards: list[float]) -> None:
    curriculum = mixture(chosen)
    for reward in rewards:
        curriculum.observe(curriculum.next_index(), reward)
    restored = mixture(chosen)
    restored.restore(json.loads(json.dumps(curriculum.state())))
    following = [curriculum.next_index() for _ in range(40)]
    assert [restored.next_index() for _ in range(40)] == following
    assert len(set(following)) == 40
    assert restored.standing() == curriculum.standing()
    assert {place_of(index, len(chosen))[1] for index in following} <= set(range(len(chosen)))


def test_a_state_of_other_tasks_is_refused_and_changes_nothing() -> None:
    two, three = mixture([1, 1]), mixture([1, 1, 1])
    before = two.state()
    with pytest.raises(OtherTask, match="now f0 and f1, then f0 and f1 and f2"):
        two.restore(three.state())
    with pytest.raises(OtherTask, match="older program"):
        two.restore({"ordinal": 3})
    assert two.state() == before


def test_weights_may_change_between_two_starts() -> None:
    old = mixture([1, 1])
    for _ in range(7):
        old.next_index()
    new = mixture([1, 9])
    new.restore(old.state())
    drawn = Counter(place_of(new.next_index(), 2)[1] for _ in range(100))
    assert 88 <= drawn[1] <= 91


@given(weights, st.lists(st.floats(-1, 2), max_size=80), st.integers(1, 70))
def test_what_comes_next_is_told_before_and_telling_changes_nothing(
    chosen: list[float], rewards: list[float], count: int
) -> None:
    curriculum = mixture(chosen)
    for reward in rewards:
        curriculum.observe(curriculum.next_index(), reward)
    before = json.dumps(curriculum.state())
    told = curriculum.upcoming(count)
    assert json.dumps(curriculum.state()) == before
    assert len(told) == count, "short tasks look beyond the end of a pass"
    assert [curriculum.next_index() for _ in range(count)] == told


def test_a_problem_is_the_same_one_whenever_it_comes() -> None:
    """And no two problems are one, of whatever tasks; a level is a kind, and so is a task that has an end."""
    curriculum = mixture([1, 1, 2])
    indexes = [curriculum.next_index() for _ in range(120)]
    problems: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for index in indexes:
        inner, number = place_of(index, 3)
        problems.setdefault((number, inner % 6 if number == 1 else inner), set()).add(curriculum.alike(index))
    assert all(len(alike) == 1 for alike in problems.values())
    assert len({problem for [(problem, _)] in problems.values()}) == len(problems)
    kinds = {place_of(index, 3)[1]: curriculum.alike(index)[1] for index in indexes}
    assert len(set(kinds.values())) == 3, "some task must rise to its next level"


def test_what_was_drawn_and_not_leased_comes_first_after_a_restart() -> None:
    curriculum = mixture([1, 2])
    drawn = [curriculum.next_index() for _ in range(12)]
    restored = mixture([1, 2])
    restored.restore({**curriculum.state(), "again": drawn[4:]})
    following = [curriculum.next_index() for _ in range(20)]
    assert restored.upcoming(3) == drawn[4:7]
    assert restored.upcoming(12) == drawn[4:] + following[:4]
    assert [restored.next_index() for _ in range(2)] == drawn[4:6]
    assert restored.state()["again"] == drawn[6:]
    assert [restored.next_index() for _ in range(26)] == drawn[6:] + following
    assert "again" not in restored.state()
