"""The test over a peer's history: never unfair to the honest, soon sure of the others."""

from __future__ import annotations

import itertools
import math
import random
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.verification.sequential import (
    LIFETIME_ERROR,
    Audited,
    Found,
    History,
    Margin,
    Measure,
    count_above,
    heard,
    is_convicted,
    log_evidence,
)

EXACT = (Margin(gap=0.01, rate=1e-4), Margin(gap=0.1, rate=1e-5))
"""What float32 on both sides is held to."""


def told(audits: list[Audited], margins: tuple[Margin, ...] = EXACT) -> History:
    history = History()
    for audited in audits:
        history = heard(history, audited, margins)
    return history


def audits_until_convicted(rate: float, *, before: int = 0, tokens: int = 64, seed: int = 0, limit: int = 2000) -> int:
    """Audits of a peer that is honest for `before` of them and then has tokens above both margins at `rate`."""
    dice = random.Random(seed)
    history = told([Audited(tokens=tokens, above=(0, 0))] * before)
    for number in range(1, limit):
        above = sum(dice.random() < rate for _ in range(tokens))
        history = heard(history, Audited(tokens=tokens, above=(above, above)), EXACT)
        if is_convicted(history):
            return number
    return limit


def test_nothing_is_known_of_who_was_never_audited() -> None:
    assert log_evidence(History()) == 0.0
    assert not is_convicted(History())


def test_gaps_are_counted_by_margin_and_what_nobody_could_judge_is_not() -> None:
    gaps = [0.0, 0.005, 0.05, math.inf, math.nan, 0.01]
    tokens = [Found(gap=gap) for gap in gaps]
    assert count_above(tokens, EXACT) == Audited(tokens=5, above=(2, 1), contexts=5)
    far = [Found(gap=0.0, apart=apart) for apart in (0.0, 0.3, math.inf, math.nan)]
    margins = (*EXACT, Margin(gap=0.2, rate=0.01, measure=Measure.LOGPROB))
    assert count_above(far, margins) == Audited(tokens=3, above=(0, 0, 2), contexts=3)


@pytest.mark.parametrize("rate", [0.01, 0.05])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
def test_the_evidence_is_fair_to_the_honest(rate: float, share: float) -> None:
    """Its expectation after four audits of two tokens, over all that can happen to a peer whose rate is at most the
    honest one, is at most 1."""
    margins = (Margin(gap=0.01, rate=rate),)
    chance = {above: comb(2, above) * (share * rate) ** above * (1 - share * rate) ** (2 - above) for above in range(3)}
    mean = 0.0
    for course in itertools.product(range(3), repeat=4):
        probability = math.prod(chance[above] for above in course)
        history = told([Audited(tokens=2, above=(above,)) for above in course], margins)
        mean += probability * math.exp(log_evidence(history))
    assert mean <= 1 + 1e-9
    assert share < 1 or mean == pytest.approx(1.0)


@given(st.lists(st.integers(1, 4096), max_size=50))
def test_who_is_never_above_a_margin_is_never_suspected(tokens: list[int]) -> None:
    assert log_evidence(told([Audited(tokens=count, above=(0, 0)) for count in tokens])) <= 1e-9


def test_honest_peers_are_convicted_by_nobody() -> None:
    """A thousand lives of two hundred audits each at the very rate that is allowed: the largest evidence of a life has
    a tail of at most 1/x."""
    dice, largest = random.Random(7), []
    margins = (Margin(gap=0.01, rate=0.01),)
    for _ in range(1000):
        history, most = History(), 0.0
        for _ in range(200):
            above = sum(dice.random() < 0.01 for _ in range(20))
            history = heard(history, Audited(tokens=20, above=(above,)), margins)
            most = max(most, log_evidence(history))
        largest.append(most)
    for evidence in (2.0, 5.0, 20.0):
        assert sum(one >= math.log(evidence) for one in largest) <= 1000 / evidence
    assert max(largest) < -math.log(LIFETIME_ERROR)


@pytest.mark.parametrize(("rate", "at_most"), [(1.0, 1), (0.1, 3), (0.02, 10), (0.003, 80)])
def test_dishonest_peers_are_convicted_soon(rate: float, at_most: int) -> None:
    assert max(audits_until_convicted(rate, seed=seed) for seed in range(20)) <= at_most


def test_honesty_cannot_be_saved_up() -> None:
    """A sleeper is found a few audits later than a newcomer, however long it slept."""
    awake = max(audits_until_convicted(0.02, seed=seed) for seed in range(20))
    asleep = max(audits_until_convicted(0.02, before=5000, seed=seed) for seed in range(20))
    assert asleep <= 3 * awake


def test_margins_may_be_calibrated_anew_and_not_be_more_or_fewer() -> None:
    history = told([Audited(tokens=64, above=(0, 0))] * 3)
    wider = (Margin(gap=0.05, rate=1e-2), Margin(gap=0.5, rate=1e-3))
    assert log_evidence(heard(history, Audited(tokens=64, above=(1, 0)), wider)) < 1.0
    with pytest.raises(ValueError, match="2 counts for 1 margins"):
        heard(history, Audited(tokens=64, above=(0, 0)), EXACT[:1])
    with pytest.raises(ValueError, match="bets"):
        heard(history, Audited(tokens=64, above=(0,)), EXACT[:1])


@pytest.mark.parametrize(("gap", "rate"), [(-1.0, 0.1), (0.1, 0.0), (0.1, 1.0), (math.nan, 0.1)])
def test_a_margin_that_tells_nothing_is_refused(gap: float, rate: float) -> None:
    with pytest.raises(ValueError, match="tells nothing"):
        Margin(gap=gap, rate=rate)
