"""The test of what is withheld: soon sure of who chooses, and never unfair to who is interrupted."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.verification.sequential import History, is_convicted, log_evidence
from learner.verification.withheld import Worth, alike, heard_withheld, is_worse


def until_convicted(worse: float, seed: int, limit: int = 1000) -> int:
    dice, history = random.Random(seed), History()
    for number in range(1, limit):
        history = heard_withheld(history, dice.random() < worse)
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
        if is_lost(dice, mine) and (told := is_worse(*alike(mine, other))) is not None:
            history, worse = heard_withheld(history, told), worse + told
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
    assert is_worse(*alike(mine, [])) is None


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


def test_the_sum_decides_and_equal_ones_say_nothing() -> None:
    assert is_worse([0.0, 1.0], [1.0, 1.0]) is True
    assert is_worse([1.0, 1.0], [1.0, 0.0]) is False
    assert is_worse([1.0, 0.0], [0.0, 1.0]) is None


@pytest.mark.parametrize(("worse", "most"), [(1.0, 30), (0.9, 80), (0.8, 150)])
def test_who_chooses_is_found(worse: float, most: int) -> None:
    assert max(until_convicted(worse, seed) for seed in range(50)) <= most


def test_the_evidence_is_a_fair_bet_whatever_came_before() -> None:
    """Its expectation under chance, over everything that can happen in eight groups, is 1."""
    total = 0.0
    for story in itertools.product((False, True), repeat=8):
        history = History()
        for worse in story:
            history = heard_withheld(history, worse)
        total += 0.5**8 * math.exp(log_evidence(history))
    assert total == pytest.approx(1.0)


def test_who_is_interrupted_by_chance_is_not_found_more_often_than_promised() -> None:
    found = 0
    for seed in range(400):
        dice, history = random.Random(seed), History()
        for _ in range(200):
            history = heard_withheld(history, dice.random() < 0.5)
            if is_convicted(history, error=0.02):
                found += 1
                break
    assert found <= 16, "8 are expected at most"


def test_who_withholds_the_better_ones_is_no_cheat() -> None:
    history = History()
    for _ in range(200):
        history = heard_withheld(history, False)
    assert log_evidence(history) < 0
