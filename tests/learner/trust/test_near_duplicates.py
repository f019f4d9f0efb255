"""Copies are noticed, chance is not."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from learner.trust.near_duplicates import COMMON, SHINGLE, SKETCH, NearCopies, likeness, sketch
from protocol.core.ids import LeaseId

LONG = tuple(random.Random(1).choices(range(1000), k=200))
UNLIKELY = -500.0


def lease(number: int) -> LeaseId:
    return LeaseId(number.to_bytes(16, "big"))


def changed(tokens: tuple[int, ...], share: float, seed: int = 0) -> tuple[int, ...]:
    dice = random.Random(seed)
    return tuple(dice.randrange(1000) if dice.random() < share else token for token in tokens)


def seen(
    copies: NearCopies, one: LeaseId, index: int, tokens: tuple[int, ...], log_probability: float
) -> LeaseId | None:
    return copies.seen(one, index, sketch(tokens), log_probability)


def test_a_copy_is_told_with_the_lease_that_it_repeats() -> None:
    copies = NearCopies()
    assert seen(copies, lease(1), 0, LONG, UNLIKELY) is None
    assert seen(copies, lease(2), 5, LONG, UNLIKELY) == lease(1)


def test_so_is_one_of_which_some_tokens_were_changed() -> None:
    for seed in range(20):
        copies = NearCopies()
        seen(copies, lease(1), 0, LONG, UNLIKELY)
        assert seen(copies, lease(2), 0, changed(LONG, 0.08, seed), UNLIKELY) == lease(1)


def test_others_are_not() -> None:
    copies = NearCopies()
    for number in range(500):
        assert seen(copies, lease(number), 0, tuple(random.Random(number).choices(range(20), k=60)), UNLIKELY) is None


def test_a_group_may_repeat_itself_and_an_answer_that_all_give_is_no_copy() -> None:
    copies = NearCopies()
    assert seen(copies, lease(1), 0, LONG, UNLIKELY) is None
    assert seen(copies, lease(1), 1, LONG, UNLIKELY) is None
    assert seen(copies, lease(2), 0, (1, 2, 3), -1.5) is None
    assert seen(copies, lease(3), 0, (1, 2, 3), -1.5) is None


def test_who_repeats_an_unlikely_one_cannot_claim_that_it_was_likely() -> None:
    copies = NearCopies()
    assert seen(copies, lease(1), 0, LONG, UNLIKELY) is None
    assert seen(copies, lease(2), 0, LONG, -0.01) == lease(1)
    assert seen(copies, lease(3), 0, LONG[::-1], -0.01) is None
    assert seen(copies, lease(4), 0, LONG[::-1], -0.01) is None, "a likely completion must not be remembered"


def test_what_everybody_says_is_looked_through() -> None:
    """A preamble that all completions share makes none of them a copy, nor costs more with each."""
    copies = NearCopies()
    preamble = LONG[:20]
    found = [
        seen(copies, lease(number), 0, preamble + tuple(random.Random(number).choices(range(1000), k=80)), UNLIKELY)
        for number in range(2 * COMMON)
    ]
    assert found == [None] * len(found)


def test_memory_is_bounded() -> None:
    copies = NearCopies(remembered=3)
    for number in range(10):
        seen(copies, lease(number), 0, tuple(random.Random(number).choices(range(1000), k=60)), UNLIKELY)
    assert len(copies._sketches) == 3
    assert {holder for holders in copies._holders.values() for holder in holders} == set(copies._sketches)


@given(st.lists(st.integers(0, 50), max_size=80).map(tuple), st.lists(st.integers(0, 50), max_size=80).map(tuple))
def test_likeness_is_a_share_and_the_same_both_ways(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    found = likeness(sketch(one), sketch(other))
    assert 0.0 <= found <= 1.0
    assert found == likeness(sketch(other), sketch(one))
    assert likeness(sketch(one), sketch(one)) == (1.0 if one else 0.0)


@given(st.lists(st.integers(0, 1 << 31), min_size=1, max_size=80).map(tuple), st.integers(0, (1 << 64) - 1))
def test_a_sketch_is_of_shingles_and_nobody_knows_it_without_the_salt(tokens: tuple[int, ...], salt: int) -> None:
    mine = sketch(tokens, salt)
    width = min(SHINGLE, len(tokens))
    assert len(mine) == min(SKETCH, len({tokens[i : i + width] for i in range(len(tokens) - width + 1)}))
    assert mine == sketch(tokens, salt)
    assert not mine & sketch(tokens, salt ^ 1)
