"""The test of what is withheld: soon sure of who chooses, and never unfair to who is interrupted."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.verification.choosing import CONTROLS, STRENGTHS, Choice, Seen, Worth, heard_choice
from learner.verification.choosing import seen as seen_of
from learner.verification.sequential import History, is_convicted, log_evidence

BETS = len(STRENGTHS)
"""On what a group is worth; as many more are on what it gains by its version."""

Loss = Callable[[random.Random, list[Worth]], bool]
Versions = list[list[Worth]]


def worths(*rewards: float) -> list[Worth]:
    return [Worth(tokens=9, reward=reward) for reward in rewards]


def seen(choice: Choice, theirs: list[Worth], ours: list[Worth], withheld: float = 0.5) -> Seen | None:
    return seen_of(choice, theirs, ours, withheld=withheld)


# One group.


def test_what_is_worth_the_same_says_nothing() -> None:
    assert seen(Choice.WITHHELD, worths(1, 0), worths(0, 1, 1, 0)) is not None
    assert seen(Choice.WITHHELD, worths(1, 1), worths(1, 1)) is None
    assert seen(Choice.DELIVERED, worths(1, 0), []) is None


def test_withheld_is_to_be_worse_and_delivered_better() -> None:
    good, bad, mixed = worths(1, 1), worths(0, 0), worths(0, 1, 0, 1, 0, 1)
    for choice, favourable, other in ((Choice.WITHHELD, bad, good), (Choice.DELIVERED, good, bad)):
        found, against = seen(choice, favourable, mixed), seen(choice, other, mixed)
        assert found is not None
        assert against is not None
        assert found.worth > 0 > against.worth
        assert min(found.log_ratios[:BETS]) > 0 > max(against.log_ratios[:BETS])
        assert set(found.log_ratios[BETS:]) == {0.0}, "no other version was looked at"


def test_only_what_is_about_as_long_is_compared() -> None:
    long, short = (Worth(tokens=500, reward=1.0), Worth(tokens=100, reward=0.0))
    assert seen(Choice.WITHHELD, [short, short], [long, long]) is None
    near = Worth(tokens=101, reward=1.0)
    alone, beside = seen(Choice.WITHHELD, [short], [near, near]), seen(Choice.WITHHELD, [short], [near, near, long])
    assert alone == beside is not None


@given(
    st.lists(
        st.tuples(st.sampled_from((5, 50, 500)), *[st.sampled_from((0.0, 0.25, 1.0, 7.0))] * 2), min_size=2, max_size=7
    ),
    st.integers(1, 6),
    st.sampled_from(Choice),
    st.sampled_from((0.0, 0.1, 0.5, 0.9)),
)
def test_each_bet_is_fair_over_all_ways_to_deal_the_same_completions(
    made: list[tuple[int, float, float]], size: int, choice: Choice, withheld: float
) -> None:
    """Within each length, any of as many are as likely to be the peer's."""
    pool = [Worth(tokens=tokens, reward=reward, gain=gain) for tokens, reward, gain in made]
    first = [i < size for i in range(len(pool))]
    counts = Counter(one.tokens for one, is_mine in zip(pool, first, strict=True) if is_mine)
    totals, deals = [0.0] * 2 * BETS, 0
    for mine in itertools.combinations(range(len(pool)), sum(first)):
        if Counter(pool[i].tokens for i in mine) == counts:
            found = seen(
                choice, [pool[i] for i in mine], [one for i, one in enumerate(pool) if i not in mine], withheld
            )
            ratios = (0.0,) * 2 * BETS if found is None else found.log_ratios
            totals, deals = [total + math.exp(ratio) for total, ratio in zip(totals, ratios, strict=True)], deals + 1
    assert [total / deals for total in totals] == pytest.approx([1.0] * 2 * BETS)


def test_a_large_group_is_told_in_numbers_that_fit() -> None:
    dice = random.Random(0)
    found = seen(
        Choice.WITHHELD, worths(*(dice.random() for _ in range(64))), worths(*(dice.random() for _ in range(192)))
    )
    assert found is not None
    assert all(math.isfinite(ratio) for ratio in found.log_ratios)


# What is withheld.


def group(dice: random.Random, bias: float, size: int = 8) -> list[Worth]:
    """Completions whose reward goes by their length, up or down, and by chance."""
    made = []
    for _ in range(size):
        tokens = max(1, round(dice.lognormvariate(6.0, 0.5)))
        longer = math.tanh(2 * (math.log(tokens) - 6.0))
        made.append(Worth(tokens=tokens, reward=float(dice.random() < 0.5 + 0.5 * bias * longer)))
    return made


def heard_when_lost(seed: int, bias: float, is_lost: Loss, most: int = 400) -> tuple[History, int]:
    """What the groups add up to that are lost so, and one in eight of the others, and after how many that is a
    conviction."""
    dice, history, tries, withheld = random.Random(seed), History(), 0, 0.0
    while history.audits < most and tries < 50 * most and not is_convicted(history):
        tries += 1
        mine, choice = group(dice, bias), Choice.DELIVERED
        is_withheld = is_lost(dice, mine)
        withheld += (is_withheld - withheld) / 16
        if is_withheld:
            choice = Choice.WITHHELD
        elif dice.random() > 1 / 8:
            continue
        if (found := seen(choice, mine, group(dice, bias, 8 * CONTROLS[choice]), withheld)) is not None:
            history = heard_choice(history, found)
    return history, history.audits


def tokens_of(made: list[Worth]) -> int:
    return sum(one.tokens for one in made)


def reward_of(made: list[Worth]) -> float:
    return sum(one.reward for one in made)


LOSSES: dict[str, Loss] = {
    "too slow": lambda dice, made: tokens_of(made) > 4000,
    "now and then too slow": lambda dice, made: tokens_of(made) * dice.lognormvariate(0.0, 0.1) > 5000,
    "slow at its longest": lambda dice, made: max(one.tokens for one in made) > 900,
    "interrupted": lambda dice, made: dice.random() < tokens_of(made) / 20_000,
}


@pytest.mark.parametrize("bias", [-1.0, 0.0, 1.0], ids=["longer is worse", "no matter", "longer is better"])
@pytest.mark.parametrize("loss", LOSSES)
def test_who_is_slow_or_interrupted_does_not_look_like_who_chooses(loss: str, bias: float) -> None:
    for seed in range(3):
        history, _ = heard_when_lost(seed, bias, LOSSES[loss])
        assert log_evidence(history) < 6.0


@pytest.mark.parametrize(("least", "most"), [(4, 120), (3, 100), (2, 100)])
def test_who_looks_at_the_rewards_does(least: int, most: int) -> None:
    for seed in range(3):
        history, heard = heard_when_lost(seed, 0.0, lambda dice, made: reward_of(made) < least)
        assert is_convicted(history)
        assert heard <= most


def test_who_delivers_only_the_rarest_is_found_by_what_it_delivers() -> None:
    dice, history, delivered = random.Random(0), History(), 0
    while not is_convicted(history):
        mine = group(dice, 0.0)
        if reward_of(mine) >= 6:
            delivered += 1
            found = seen(Choice.DELIVERED, mine, group(dice, 0.0, 16), 0.9)
            history = history if found is None else heard_choice(history, found)
    assert delivered < 70


def test_who_withholds_the_better_ones_is_no_cheat() -> None:
    history, _ = heard_when_lost(0, 0.0, lambda dice, made: reward_of(made) > 4)
    assert log_evidence(history) < 0


# What is delivered.


def versions(dice: random.Random, gain: float, size: int = 8) -> Versions:
    """What four versions make of the same seeds, each better than the one before by `gain`, or worse."""
    luck = [dice.random() for _ in range(size)]
    made = []
    for number in range(4):
        shaken = [one + dice.gauss(0, 0.1) for one in luck]  # most tokens are the same in all of them
        made.append([Worth(tokens=9, reward=float(one < 0.5 + gain * number)) for one in shaken])
    return made


def heard_of(seed: int, gain: float, pick: Callable[[random.Random, Versions], int], most: int = 400) -> History:
    """What the groups add up to of who picks a version so."""
    dice, history = random.Random(seed), History()
    while history.audits < most and not is_convicted(history):
        theirs, ours = versions(dice, gain), versions(dice, gain, 16)
        mine = pick(dice, theirs)
        other = dice.choice([number for number in range(4) if number != mine])
        both = [
            [replace(one, gain=one.reward - two.reward) for one, two in zip(of[mine], of[other], strict=True)]
            for of in (theirs, ours)
        ]
        if (found := seen(Choice.DELIVERED, *both)) is not None:
            history = heard_choice(history, found)
    return history


@pytest.mark.parametrize("gain", [-0.1, 0.0, 0.1], ids=["collapsing", "standing still", "learning"])
@pytest.mark.parametrize("number", [0, 3, None], ids=["oldest", "newest", "any"])
def test_who_takes_a_version_without_looking_does_not_look_like_who_chooses(gain: float, number: int | None) -> None:
    history = heard_of(1, gain, lambda dice, made: dice.randrange(4) if number is None else number)
    assert log_evidence(history) < 6.0


@pytest.mark.parametrize("gain", [-0.03, 0.0, 0.03])
def test_who_takes_the_best_of_its_versions_does(gain: float) -> None:
    history = heard_of(2, gain, lambda dice, made: max(range(4), key=lambda number: reward_of(made[number])))
    assert is_convicted(history)
    assert history.audits < 250, "fewer than a tenth of what it made differed by the version at all"
