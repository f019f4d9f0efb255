"""Measure which shortage there is, and for how long; only a lasting one counts."""

from __future__ import annotations

import pytest

from learner.provisioning.model.machine_selection import MARGIN
from learner.provisioning.planner.constants import BETTER_REVIEWS, HELD, SEVERE, SEVERE_REVIEWS, SHORT, SHORT_REVIEWS
from learner.provisioning.planner.hysteresis import ConditionTimer, Shortages

REVIEW_S = 10.0


def reviews_until_due(share: float, caution: float = 1.0) -> int | None:
    """How many reviews after the first."""
    shortages = Shortages(REVIEW_S)
    found = (number for number in range(100) if shortages.is_due(share, 0, number * REVIEW_S, caution=caution))
    return next(found, None)


@pytest.mark.parametrize(
    ("share", "reviews"),
    [
        (SEVERE - 0.01, SEVERE_REVIEWS),
        (SEVERE, SHORT_REVIEWS),
        (SHORT, BETTER_REVIEWS),
        (HELD, None),
        (MARGIN, None),
    ],
)
def test_the_less_is_lacking_the_longer_it_must_last(share: float, reviews: int | None) -> None:
    assert reviews_until_due(share) == reviews


def test_only_what_nobody_waits_for_yet_is_subject_to_caution() -> None:
    assert reviews_until_due(SHORT, caution=4.0) == 4 * BETTER_REVIEWS
    assert reviews_until_due(SEVERE, caution=4.0) == SHORT_REVIEWS


@pytest.mark.parametrize(("share", "due"), [(MARGIN - 0.001, True), (MARGIN, False)])
def test_who_left_is_missed_at_once_where_the_margin_is_gone(share: float, due: bool) -> None:
    assert Shortages(REVIEW_S).is_due(share, 1, 0.0, caution=1.0) is due


def test_what_was_made_good_begins_anew() -> None:
    shortages = Shortages(REVIEW_S)
    assert not shortages.is_due(0.5, 0, 0.0, caution=1.0)
    assert shortages.is_due(0.5, 0, REVIEW_S, caution=1.0)
    assert shortages.lasted_s == REVIEW_S
    shortages.made_good()
    assert not shortages.is_due(0.5, 0, 2 * REVIEW_S, caution=1.0)


def test_a_break_begins_it_anew() -> None:
    lasting = ConditionTimer()
    told = [lasting.update(is_so, now_s) for now_s, is_so in enumerate([True, True, False, True, True, True])]
    assert told == [0, 1, -1, 0, 1, 2]
    lasting.restart()
    assert lasting.update(True, 9.0) == 0
