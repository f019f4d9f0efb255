"""The test of what is withheld: soon sure of who chooses, and never unfair to who is interrupted."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from learner.verification.sequential import History, is_convicted, log_evidence
from learner.verification.withheld import heard_withheld, is_worse


def until_convicted(worse: float, seed: int, limit: int = 1000) -> int:
    dice, history = random.Random(seed), History()
    for number in range(1, limit):
        history = heard_withheld(history, dice.random() < worse)
        if is_convicted(history):
            return number
    return limit


def test_the_mean_decides_and_equal_ones_say_nothing() -> None:
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
