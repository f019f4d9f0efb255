"""Decide when another set of peers is better, and at which price a peer would be in it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from learner.provisioning.model.capacity import Clockwork
from learner.provisioning.model.machine_selection import Candidate
from learner.provisioning.planner.cheaper_set import CheaperSetSearch
from learner.provisioning.planner.constants import BETTER_REVIEWS, CAUTION_MOST
from learner.provisioning.planner.pool import Pool

CLOCK = Clockwork(train_s=100.0, rollouts=100, staleness=3, kappa=1)
REVIEW_S = 10.0
DEAR = Candidate(name="dear", price=1.0, rate=1.2)
CHEAP = Candidate(name="cheap", price=0.5, rate=1.2)
ON = frozenset(["dear"])


def reviews_until_moved(bargain: CheaperSetSearch, pool: Pool, from_s: float = 0.0) -> int | None:
    """How many reviews after the first, with nothing happening."""
    for number in range(200):
        now_s = from_s + number * REVIEW_S
        bargain.note_offers(pool, now_s)
        if bargain.review(pool, ON, now_s) is not None:
            return number
    return None


def test_a_better_set_must_look_so_for_a_while_and_longer_after_a_regret() -> None:
    pool = Pool(CLOCK, [DEAR, CHEAP])
    assert reviews_until_moved(CheaperSetSearch(REVIEW_S), pool) == BETTER_REVIEWS
    wary = CheaperSetSearch(REVIEW_S)
    wary.regret(0.0)
    assert reviews_until_moved(wary, pool) == 2 * BETTER_REVIEWS
    for _ in range(20):
        wary.regret(0.0)
    assert wary.caution == CAUTION_MOST


def test_caution_comes_down_with_every_quiet_hour() -> None:
    bargain, pool = CheaperSetSearch(REVIEW_S), Pool(CLOCK, [DEAR])
    bargain.regret(0.0)
    bargain.regret(0.0)
    caution = []
    for hour in range(1, 5):
        for at_s in (3600.0 * hour, 3600.0 * hour + REVIEW_S):
            bargain.review(pool, ON, at_s)
        caution.append(bargain.caution)
    assert caution == [2.0, 1.0, 1.0, 1.0]


@pytest.mark.parametrize("stops", [0.0, 2.0])
@pytest.mark.parametrize("start_price", [0.0, 0.05])
@pytest.mark.parametrize("start_s", [0.0, 300.0])
def test_the_price_that_is_told_is_the_one_from_which_on_it_is_worth_it(
    stops: float, start_price: float, start_s: float
) -> None:
    one = replace(CHEAP, rate=2.0, start_s=start_s, start_price=start_price, stops_per_hour=stops)
    told = CheaperSetSearch(REVIEW_S).price_to_be_active(Pool(CLOCK, [DEAR, one]), ON, "cheap", 0.0)
    assert 0.5 < told < 1
    for price, moves in ((told * 0.99, True), (told * 1.01, False)):
        pool = Pool(CLOCK, [DEAR, replace(one, price=price)])
        assert (reviews_until_moved(CheaperSetSearch(REVIEW_S), pool) is not None) is moves


def test_who_comes_and_goes_keeps_nobody_from_being_replaced_by_others() -> None:
    """It is there at every other review, and so whenever a better set is looked for."""
    bargain, fickle = CheaperSetSearch(REVIEW_S), replace(CHEAP, name="fickle", price=0.1)
    for number in range(20 * BETTER_REVIEWS):
        pool = Pool(CLOCK, [DEAR, CHEAP, *([] if number % 2 else [fickle])])
        bargain.note_offers(pool, number * REVIEW_S)
        if (aim := bargain.review(pool, ON, number * REVIEW_S)) is not None:
            assert aim.names == {"cheap"}
            return
    pytest.fail("nothing was moved to")
