"""The test for selective delivery: soon sure of the guilty, never unfair to peers that are interrupted."""

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

from learner.trust.ban_evidence import History, is_convicted, log_evidence, wagered
from learner.trust.selection_test import (
    CONTROLS,
    STRENGTHS,
    CompletionValue,
    DeliveryOutcome,
    Seen,
    VersionGain,
)
from learner.trust.selection_test import seen as seen_of

BETS = len(STRENGTHS)
"""On what a group is worth; as many more are on what it gains by its version."""

Loss = Callable[[random.Random, list[CompletionValue]], bool]
Versions = list[list[CompletionValue]]


def worths(*rewards: float) -> list[CompletionValue]:
    return [CompletionValue(tokens=9, reward=reward) for reward in rewards]


def seen(
    outcome: DeliveryOutcome, theirs: list[CompletionValue], ours: list[CompletionValue], withheld: float = 0.5
) -> Seen | None:
    return seen_of(outcome, theirs, ours, withheld=withheld)


# One group.


def test_what_is_worth_the_same_says_nothing() -> None:
    assert seen(DeliveryOutcome.WITHHELD, worths(1, 0), worths(0, 1, 1, 0)) is not None
    assert seen(DeliveryOutcome.WITHHELD, worths(1, 1), worths(1, 1)) is None
    assert seen(DeliveryOutcome.DELIVERED, worths(1, 0), []) is None


def test_withheld_is_to_be_worse_and_delivered_better() -> None:
    good, bad, mixed = worths(1, 1), worths(0, 0), worths(0, 1, 0, 1, 0, 1)
    for outcome, favourable, other in ((DeliveryOutcome.WITHHELD, bad, good), (DeliveryOutcome.DELIVERED, good, bad)):
        found, against = seen(outcome, favourable, mixed), seen(outcome, other, mixed)
        assert found is not None
        assert against is not None
        assert found.value > 0 > against.value
        assert min(found.log_ratios[:BETS]) > 0 > max(against.log_ratios[:BETS])
        assert set(found.log_ratios[BETS:]) == {0.0}, "no other version was looked at"


def test_only_what_is_about_as_long_is_compared() -> None:
    long, short = (CompletionValue(tokens=500, reward=1.0), CompletionValue(tokens=100, reward=0.0))
    assert seen(DeliveryOutcome.WITHHELD, [short, short], [long, long]) is None
    near = CompletionValue(tokens=101, reward=1.0)
    alone, beside = (
        seen(DeliveryOutcome.WITHHELD, [short], [near, near]),
        seen(DeliveryOutcome.WITHHELD, [short], [near, near, long]),
    )
    assert alone == beside is not None


LENGTHS, REWARDS = st.sampled_from((5, 50, 500)), st.sampled_from((0.0, 0.25, 1.0, 7.0))


@given(
    st.lists(st.tuples(LENGTHS, REWARDS, LENGTHS, REWARDS), min_size=2, max_size=7),
    st.integers(1, 6),
    st.sampled_from(DeliveryOutcome),
    st.sampled_from((0.0, 0.1, 0.5, 0.9)),
)
def test_each_bet_is_fair_over_all_ways_to_deal_the_same_completions(
    made: list[tuple[int, float, int, float]], size: int, outcome: DeliveryOutcome, withheld: float
) -> None:
    """Within each length any of as many are as likely to be the peer's: of what they say, and of what
    we draw."""
    pool = [
        CompletionValue(tokens=tokens, reward=reward, gains=VersionGain(tokens=drawn, value=gain))
        for tokens, reward, drawn, gain in made
    ]

    first = {i for i in range(len(pool)) if i < size}
    for bets, place in ((slice(0, BETS), 0), (slice(BETS, 2 * BETS), 2)):
        counts = Counter(made[i][place] for i in first)
        ratios = []
        for mine in itertools.combinations(range(len(pool)), len(first)):
            if Counter(made[i][place] for i in mine) == counts:
                others = [one for i, one in enumerate(pool) if i not in mine]
                found = seen(outcome, [pool[i] for i in mine], others, withheld)
                ratios.append((0.0,) * BETS if found is None else found.log_ratios[bets])
        means = [sum(map(math.exp, column)) / len(ratios) for column in zip(*ratios, strict=True)]
        assert means == pytest.approx([1.0] * BETS)


@pytest.mark.parametrize("least", [1e-170, 1e-200, 5e-324])
def test_rewards_that_are_hardly_apart_are_told_or_are_the_same(least: float) -> None:
    found = seen(DeliveryOutcome.WITHHELD, worths(0, 0), worths(least, 0, least))
    if least < 1e-300:
        assert found is None
    else:
        same = seen(DeliveryOutcome.WITHHELD, worths(0, 0), worths(1, 0, 1))
        assert found is not None
        assert same is not None
        assert found.log_ratios == pytest.approx(same.log_ratios)


def test_a_large_group_is_told_in_numbers_that_fit() -> None:
    dice = random.Random(0)
    found = seen(
        DeliveryOutcome.WITHHELD,
        worths(*(dice.random() for _ in range(64))),
        worths(*(dice.random() for _ in range(192))),
    )
    assert found is not None
    assert all(math.isfinite(ratio) for ratio in found.log_ratios)


# What is withheld.


def group(dice: random.Random, bias: float, size: int = 8) -> list[CompletionValue]:
    """Completions whose reward goes by their length, up or down, and by chance."""
    made = []
    for _ in range(size):
        tokens = max(1, round(dice.lognormvariate(6.0, 0.5)))
        longer = math.tanh(2 * (math.log(tokens) - 6.0))
        made.append(CompletionValue(tokens=tokens, reward=float(dice.random() < 0.5 + 0.5 * bias * longer)))
    return made


def heard_when_lost(seed: int, bias: float, is_lost: Loss, most: int = 400) -> tuple[History, int]:
    """Return the sum of the evidence from groups that are lost in this way, and from one in eight of the others. Return
    also after how many groups it convicts.
    """
    dice, history, tries, withheld = random.Random(seed), History(), 0, 0.0
    while history.audits < most and tries < 50 * most and not is_convicted(history):
        tries += 1
        mine, outcome = group(dice, bias), DeliveryOutcome.DELIVERED
        is_withheld = is_lost(dice, mine)
        withheld += (is_withheld - withheld) / 16
        if is_withheld:
            outcome = DeliveryOutcome.WITHHELD
        elif dice.random() > 1 / 8:
            continue
        if (found := seen(outcome, mine, group(dice, bias, 8 * CONTROLS[outcome]), withheld)) is not None:
            history = wagered(history, found.log_ratios)
    return history, history.audits


def tokens_of(made: list[CompletionValue]) -> int:
    return sum(one.tokens for one in made)


def reward_of(made: list[CompletionValue]) -> float:
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
            found = seen(DeliveryOutcome.DELIVERED, mine, group(dice, 0.0, 16), 0.9)
            history = history if found is None else wagered(history, found.log_ratios)
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
        made.append([CompletionValue(tokens=9, reward=float(one < 0.5 + gain * number)) for one in shaken])
    return made


def heard_of(seed: int, gain: float, pick: Callable[[random.Random, Versions], int], most: int = 400) -> History:
    """What the groups add up to of who picks a version so."""
    dice, history = random.Random(seed), History()
    while history.audits < most and not is_convicted(history):
        theirs, ours = versions(dice, gain), versions(dice, gain, 16)
        mine = pick(dice, theirs)
        other = dice.choice([number for number in range(4) if number != mine])
        both = [
            [
                replace(one, gains=VersionGain(tokens=one.tokens, value=one.reward - two.reward))
                for one, two in zip(of[mine], of[other], strict=True)
            ]
            for of in (theirs, ours)
        ]
        if (found := seen(DeliveryOutcome.DELIVERED, *both)) is not None:
            history = wagered(history, found.log_ratios)
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


# Another engine.

CUT_OFF = 512
"""Tokens, after which a completion is worth nothing."""


def ending(dice: random.Random, begun: int) -> CompletionValue:
    """How a completion may go on behind so many tokens: half of all are cut off, of the others four in five right."""
    tokens = begun + math.ceil(dice.expovariate(math.log(2) / CUT_OFF))
    return CompletionValue(tokens=min(tokens, CUT_OFF), reward=float(tokens < CUT_OFF and dice.random() < 0.8))


def parted(dice: random.Random, one: CompletionValue, rate: float) -> CompletionValue:
    """Return a completion of the same seed where one token in 1 / `rate` differs."""
    at = math.ceil(dice.expovariate(rate))
    return one if at >= one.tokens else ending(dice, at)


@pytest.mark.parametrize(("rounding", "version"), [(0.01, 0.02), (0.02, 0.05), (0.003, 0.006)])
def test_who_rounds_otherwise_does_not_look_like_who_chooses(rounding: float, version: float) -> None:
    """A completion that its engine cut off may have ended well on ours, and the other way round: its lengths say
    nothing about what its seeds gain here.
    """
    ratios = []
    for seed in range(4):
        dice, history = random.Random(seed), History()
        for _ in range(150):
            both = []
            for size, is_theirs in ((16, True), (32, False)):
                here = [ending(dice, 0) for _ in range(size)]
                there = [parted(dice, one, version) for one in here]
                said = [parted(dice, one, rounding) for one in here] if is_theirs else here
                both.append(
                    [
                        replace(one, gains=VersionGain(tokens=a.tokens, value=a.reward - b.reward))
                        for one, a, b in zip(said, here, there, strict=True)
                    ]
                )
            if (found := seen(DeliveryOutcome.DELIVERED, *both, withheld=0.0)) is not None:
                ratios.append(math.exp(found.log_ratios[BETS]))
                history = wagered(history, found.log_ratios)
        assert log_evidence(history) < 6.0
    assert sum(ratios) / len(ratios) < 1.05, "the weakest bet, whose mean is known best"
