"""The test of what is withheld: soon sure of who chooses, and never unfair to who is interrupted."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.verification.choosing import Choice, Worth, alike, compared, heard_choice, is_favourable
from learner.verification.sequential import History, is_convicted, log_evidence


def until_convicted(worse: float, seed: int, limit: int = 1000) -> int:
    dice, history = random.Random(seed), History()
    for number in range(1, limit):
        history = heard_choice(history, dice.random() < worse)
        if is_convicted(history):
            return number
    return limit


def group(dice: random.Random, bias: float) -> list[Worth]:
    """Completions whose reward goes by their length, up or down, and by chance."""
    made = []
    for _ in range(8):
        tokens = max(1, round(dice.lognormvariate(6.0, 0.5)))
        longer = math.tanh(2 * (math.log(tokens) - 6.0))
        made.append(Worth(tokens=tokens, reward=float(dice.random() < 0.5 + 0.5 * bias * longer)))
    return made


def lost_and_worse(
    seed: int, bias: float, is_lost: Callable[[random.Random, list[Worth]], bool]
) -> tuple[History, float]:
    """What the groups add up to that are lost so, and the share of those heard that were worse."""
    dice, history, worse, tries = random.Random(seed), History(), 0, 0
    while history.audits < 600 and tries < 20_000:
        tries += 1
        mine, other = group(dice, bias), group(dice, bias)
        if is_lost(dice, mine) and (found := compared(mine, other)) is not None:
            told = is_favourable(Choice.WITHHELD, *found)
            history, worse = heard_choice(history, told), worse + told
    return history, worse / history.audits


def tokens_of(made: list[Worth]) -> int:
    return sum(one.tokens for one in made)


LOSSES: dict[str, Callable[[random.Random, list[Worth]], bool]] = {
    "too slow": lambda dice, made: tokens_of(made) > 4000,
    "now and then too slow": lambda dice, made: tokens_of(made) * dice.lognormvariate(0.0, 0.1) > 5000,
    "slow at its longest": lambda dice, made: max(one.tokens for one in made) > 900,
    "interrupted": lambda dice, made: dice.random() < tokens_of(made) / 20_000,
}


@pytest.mark.parametrize("bias", [-1.0, 0.0, 1.0], ids=["longer is worse", "no matter", "longer is better"])
@pytest.mark.parametrize("loss", LOSSES)
def test_who_is_slow_or_interrupted_does_not_look_like_who_chooses(loss: str, bias: float) -> None:
    for seed in range(3):
        history, worse = lost_and_worse(seed, bias, LOSSES[loss])
        assert 0.43 < worse < 0.57
        assert log_evidence(history) < 5.0


@pytest.mark.parametrize("bias", [-1.0, 0.0, 1.0])
def test_who_looks_at_the_rewards_does(bias: float) -> None:
    history, worse = lost_and_worse(0, bias, lambda dice, made: sum(one.reward for one in made) < 4)
    assert worse > 0.65
    assert is_convicted(history)


def test_only_what_is_about_as_long_is_compared_and_once() -> None:
    mine = [Worth(tokens=100, reward=1.0), Worth(tokens=101, reward=2.0), Worth(tokens=500, reward=3.0)]
    theirs = [Worth(tokens=102, reward=4.0), Worth(tokens=200, reward=5.0), Worth(tokens=0, reward=6.0)]
    assert alike(mine, theirs) == ([1.0], [4.0])
    assert alike(theirs, mine) == ([4.0], [1.0])
    assert compared(mine, theirs) == (1.0, 4.0)
    assert compared(mine, []) is None


@given(
    st.lists(st.tuples(st.integers(0, 300), st.floats(0, 1)), max_size=12),
    st.lists(st.tuples(st.integers(0, 300), st.floats(0, 1)), max_size=12),
)
def test_what_is_compared_does_not_depend_on_which_was_withheld(
    ones: list[tuple[int, float]], others: list[tuple[int, float]]
) -> None:
    mine, theirs = ([Worth(tokens=tokens, reward=reward) for tokens, reward in group] for group in (ones, others))
    forward, back = alike(mine, theirs), alike(theirs, mine)
    assert sorted(zip(*forward, strict=True)) == sorted(zip(back[1], back[0], strict=True))


def worths(*rewards: float) -> list[Worth]:
    return [Worth(tokens=9, reward=reward) for reward in rewards]


def test_the_mean_decides_and_equal_ones_say_nothing() -> None:
    assert compared(worths(0, 1), worths(1, 1)) == (0.5, 1.0)
    assert compared(worths(1, 0), worths(0, 1)) is None
    assert is_favourable(Choice.WITHHELD, 0.5, 1.0)
    assert not is_favourable(Choice.WITHHELD, 1.0, 0.5)
    assert is_favourable(Choice.VERSION, 1.0, 0.5), "what is delivered is to be worth more"
    assert not is_favourable(Choice.VERSION, 0.5, 1.0)


def versions(dice: random.Random, gain: float) -> list[list[Worth]]:
    """What four versions make of the same eight seeds, each better than the one before by `gain`, or worse."""
    luck = [dice.random() for _ in range(8)]
    made = []
    for number in range(4):
        shaken = [(one + dice.gauss(0, 0.1)) for one in luck]  # most tokens are the same in all of them
        made.append([Worth(tokens=9, reward=float(one < 0.5 + gain * number)) for one in shaken])
    return made


def chosen(seed: int, gain: float, pick: Callable[[random.Random, list[list[Worth]]], int]) -> tuple[History, float]:
    """What the groups add up to of whom picks a version so, and the share that was in its favour."""
    dice, history, favourable = random.Random(seed), History(), 0
    while history.audits < 600:
        theirs, ours = versions(dice, gain), versions(dice, gain)
        mine = pick(dice, theirs)
        other = dice.choice([number for number in range(4) if number != mine])
        above = [
            [
                Worth(tokens=one.tokens, reward=one.reward - two.reward)
                for one, two in zip(of[mine], of[other], strict=True)
            ]
            for of in (theirs, ours)
        ]
        if (found := compared(*above)) is not None:
            told = is_favourable(Choice.VERSION, *found)
            history, favourable = heard_choice(history, told), favourable + told
    return history, favourable / 600


@pytest.mark.parametrize("gain", [-0.1, 0.0, 0.1], ids=["collapsing", "standing still", "learning"])
@pytest.mark.parametrize("behind", [0, 3, None], ids=["oldest", "newest", "any"])
def test_who_takes_a_version_without_looking_does_not_look_like_who_chooses(gain: float, behind: int | None) -> None:
    history, favourable = chosen(1, gain, lambda dice, made: dice.randrange(4) if behind is None else behind)
    assert 0.43 < favourable < 0.57
    assert log_evidence(history) < 5.0


@pytest.mark.parametrize("gain", [-0.03, 0.0, 0.03])
def test_who_takes_the_best_of_its_versions_does(gain: float) -> None:
    history, favourable = chosen(
        2, gain, lambda dice, made: max(range(4), key=lambda number: sum(one.reward for one in made[number]))
    )
    assert favourable > 0.6
    assert is_convicted(history)


@pytest.mark.parametrize(("worse", "most"), [(1.0, 30), (0.9, 80), (0.8, 150)])
def test_who_chooses_is_found(worse: float, most: int) -> None:
    assert max(until_convicted(worse, seed) for seed in range(50)) <= most


def test_the_evidence_is_a_fair_bet_whatever_came_before() -> None:
    """Its expectation under chance, over everything that can happen in eight groups, is 1."""
    total = 0.0
    for story in itertools.product((False, True), repeat=8):
        history = History()
        for worse in story:
            history = heard_choice(history, worse)
        total += 0.5**8 * math.exp(log_evidence(history))
    assert total == pytest.approx(1.0)


def test_who_is_interrupted_by_chance_is_not_found_more_often_than_promised() -> None:
    found = 0
    for seed in range(400):
        dice, history = random.Random(seed), History()
        for _ in range(200):
            history = heard_choice(history, dice.random() < 0.5)
            if is_convicted(history, error=0.02):
                found += 1
                break
    assert found <= 16, "8 are expected at most"


def test_who_withholds_the_better_ones_is_no_cheat() -> None:
    history = History()
    for _ in range(200):
        history = heard_choice(history, False)
    assert log_evidence(history) < 0
