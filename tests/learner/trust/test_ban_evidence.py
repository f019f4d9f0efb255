"""The test over a peer's history is never unfair to honest peers, and soon sure of the others."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.trust.ban_evidence import (
    LIFETIME_ERROR,
    MULTIPLES,
    TESTS,
    Audited,
    Counted,
    Found,
    History,
    Margin,
    Measure,
    bets_on,
    count_above,
    is_convicted,
    log_evidence,
    with_audit,
)
from learner.trust.margins import BETS, LARGE, LARGE_FLOAT32, MEDIUM, SMALL, SMALL_FLOAT32, TINY

EXACT = (
    Margin(above=0.01, over=0.01, upto=0.1, rate=1e-4, measure=Measure.GAP),
    Margin(above=0.1, over=0.1, rate=1e-5, measure=Measure.GAP),
)
"""Margins for float32 on both sides."""

LOGPROB = Margin(above=0.2, rate=0.01, measure=Measure.LOGPROB)


def audited(tokens: int, *above: int) -> Audited:
    """Return an audit in which so many of `tokens` in each band differ."""
    return Audited(tokens=tokens * len(above), counts=tuple(Counted(above=one, trials=tokens) for one in above))


def told(audits: list[Audited], margins: tuple[Margin, ...] = EXACT) -> History:
    history = History()
    for audited in audits:
        history = with_audit(history, audited, margins)
    return history


def audits_until_convicted(rate: float, *, before: int = 0, tokens: int = 64, seed: int = 0, limit: int = 2000) -> int:
    """Audits of a peer that is honest for `before` of them and then has other tokens at `rate`, in both bands."""
    dice = random.Random(seed)
    history = told([audited(tokens // 2, 0, 0)] * before)
    for number in range(1, limit):
        close, clear = (sum(dice.random() < rate for _ in range(tokens // 2)) for _ in EXACT)
        history = with_audit(history, audited(tokens // 2, close, clear), EXACT)
        if is_convicted(history):
            return number
    return limit


def test_nothing_is_known_of_who_was_never_audited() -> None:
    assert log_evidence(History()) == 0.0
    assert not is_convicted(History())


def test_draws_are_counted_by_their_leads_and_what_nobody_could_judge_is_not() -> None:
    tokens = [
        *(Found(gap=gap, lead=0.05) for gap in (0.0, 0.06, math.inf)),
        *(Found(gap=gap, lead=0.1) for gap in (0.0, 0.11)),
        *(Found(gap=gap, lead=0.5) for gap in (0.0, 0.0, 0.0, 2.0)),
        Found(gap=math.nan, lead=math.nan),
        Found(gap=0.008, lead=0.005),
    ]
    counted = count_above(tokens, EXACT)
    assert counted.tokens == 10
    assert counted.counts == (Counted(above=3, trials=5), Counted(above=1, trials=4)), (
        "a draw that is too close must not count"
    )
    close = Margin(above=0.01, upto=0.01, rate=1e-4, measure=Measure.GAP)
    far_below = [Found(gap=gap, lead=lead) for gap, lead in ((0.0, 0.0), (0.008, 0.005), (5.0, 0.01), (math.inf, 0.0))]
    [counted_close] = count_above(far_below, [close]).counts
    assert counted_close == Counted(above=2, trials=4), "unless it is far below what was drawn"
    [alone] = count_above([Found(gap=math.inf, lead=math.inf), Found(gap=0.0, lead=math.inf)], EXACT[1:]).counts
    assert alone == Counted(above=1, trials=2), "where nothing else can be drawn"
    far = [Found(gap=0.0, lead=0.005, apart=apart) for apart in (0.0, 0.3, math.inf, math.nan)]
    nothing = Counted(above=0, trials=0)
    assert count_above(far, (*EXACT, LOGPROB)).counts == (nothing, nothing, Counted(above=2, trials=3))


@pytest.mark.parametrize("rate", [0.01, 0.05])
@pytest.mark.parametrize("share", [1.0, 0.5, 0.0])
def test_the_evidence_is_fair_to_the_honest(rate: float, share: float) -> None:
    """Its expectation after four audits of two tokens, over all that can happen to a peer whose rate is at most the
    honest one, is at most 1."""
    margins = (Margin(above=0.01, rate=rate, measure=Measure.GAP),)
    chance = {above: comb(2, above) * (share * rate) ** above * (1 - share * rate) ** (2 - above) for above in range(3)}
    mean = 0.0
    for course in itertools.product(range(3), repeat=4):
        probability = math.prod(chance[above] for above in course)
        history = told([audited(2, above) for above in course], margins)
        mean += probability * math.exp(log_evidence(history))
    assert mean <= 1 + 1e-9
    assert share < 1 or mean == pytest.approx(1.0)


def test_the_evidence_of_all_bands_and_measures_together_is_fair_to_the_honest() -> None:
    """As above, of one and then two tokens in each of two bands of unlike rates, and one context."""
    margins = (
        Margin(above=0.01, upto=0.1, rate=0.2, measure=Measure.GAP),
        Margin(above=0.1, over=0.1, rate=0.01, measure=Measure.GAP),
        replace(LOGPROB, rate=0.05),
    )

    def outcomes(trials: int) -> list[tuple[float, Audited]]:
        found = []
        for above in itertools.product(range(trials + 1), range(trials + 1), range(2)):
            of = (trials, trials, 1)
            chance = math.prod(
                comb(n, k) * margin.rate**k * (1 - margin.rate) ** (n - k)
                for n, k, margin in zip(of, above, margins, strict=True)
            )
            counts = tuple(Counted(above=k, trials=n) for n, k in zip(of, above, strict=True))
            found.append((chance, Audited(tokens=2 * trials, counts=counts)))
        return found

    mean = sum(
        one * two * math.exp(log_evidence(told([first, second], margins)))
        for (one, first), (two, second) in itertools.product(outcomes(1), outcomes(2))
    )
    assert mean == pytest.approx(1.0)


@given(st.lists(st.integers(1, 4096), max_size=50))
def test_who_is_never_above_a_margin_is_never_suspected(tokens: list[int]) -> None:
    assert log_evidence(told([audited(count, 0, 0) for count in tokens])) <= 1e-9


def test_what_convicts_leaves_room_for_the_other_tests_of_the_same_peer() -> None:
    """Each of a peer's tests alone is wrong so seldom that all of them together stay below the lifetime's error."""
    for odds, convicts in ((1.0 / LIFETIME_ERROR, False), (0.99 * TESTS / LIFETIME_ERROR, False), (2.0e6, True)):
        history = History(audits=10**9, log_wealth=(math.log(odds),))
        assert is_convicted(history) is convicts, odds


def test_honest_peers_are_convicted_by_nobody() -> None:
    """A thousand lives of two hundred audits each at the very rate that is allowed: the largest evidence of a life has
    a tail of at most 1/x."""
    dice, largest = random.Random(7), []
    margins = (Margin(above=0.01, rate=0.01, measure=Measure.GAP),)
    for _ in range(1000):
        history, most = History(), 0.0
        for _ in range(200):
            above = sum(dice.random() < 0.01 for _ in range(20))
            history = with_audit(history, audited(20, above), margins)
            most = max(most, log_evidence(history))
        largest.append(most)
    for evidence in (2.0, 5.0, 20.0):
        assert sum(one >= math.log(evidence) for one in largest) <= 1000 / evidence
    assert max(largest) < -math.log(LIFETIME_ERROR)


@pytest.mark.parametrize(("rate", "at_most"), [(1.0, 1), (0.1, 3), (0.02, 10), (0.003, 80)])
def test_dishonest_peers_are_convicted_soon(rate: float, at_most: int) -> None:
    assert max(audits_until_convicted(rate, seed=seed) for seed in range(20)) <= at_most


def test_what_is_off_twice_as_often_as_may_be_is_found() -> None:
    """Four bits of some policies differ by little more. A bet on three times the rate would gain half as much of it."""
    close = next(margin for margin in SMALL if margin.upto == 0.06)
    twice = Counted(above=round(2000 * close.rate), trials=1000)
    counts = tuple(twice if margin is close else Counted(above=0, trials=0) for margin in SMALL)
    history = with_audit(History(), Audited(tokens=1000, counts=counts), SMALL)
    assert log_evidence(history) > 30.0


def test_honesty_cannot_be_saved_up() -> None:
    """A sleeper is found a few audits later than a newcomer, however long it slept."""
    awake = max(audits_until_convicted(0.02, seed=seed) for seed in range(20))
    asleep = max(audits_until_convicted(0.02, before=5000, seed=seed) for seed in range(20))
    assert asleep <= 3 * awake


def test_margins_may_be_calibrated_anew_and_not_be_more_or_fewer() -> None:
    history = told([audited(64, 0, 0)] * 3)
    wider = (
        Margin(above=0.05, upto=0.5, rate=1e-2, measure=Measure.GAP),
        Margin(above=0.5, over=0.5, rate=1e-3, measure=Measure.GAP),
    )
    assert log_evidence(with_audit(history, audited(64, 1, 0), wider)) < 1.0
    with pytest.raises(ValueError, match="2 counts for 1 margins"):
        with_audit(history, audited(64, 0, 0), EXACT[:1])
    with pytest.raises(ValueError, match="bets"):
        with_audit(history, audited(64, 0, 0, 0), (*EXACT, LOGPROB))


@pytest.mark.parametrize(
    ("above", "over", "upto", "rate", "measure"),
    [
        (-1.0, 0.0, 1.0, 0.1, Measure.GAP),
        (0.1, 0.1, 1.0, 0.0, Measure.GAP),
        (0.1, 0.1, 1.0, 1.0, Measure.GAP),
        (math.nan, 0.1, 1.0, 0.1, Measure.GAP),
        (0.5, 0.5, 0.5, 0.1, Measure.GAP),
        (0.5, 0.5, math.nan, 0.1, Measure.GAP),
        (0.5, 0.1, 1.0, 0.1, Measure.MEAN),
    ],
)
def test_a_margin_that_tells_nothing_is_refused(
    above: float, over: float, upto: float, rate: float, measure: Measure
) -> None:
    with pytest.raises(ValueError, match="tells nothing"):
        Margin(above=above, over=over, upto=upto, rate=rate, measure=measure)


ALL = [TINY, SMALL, MEDIUM, LARGE, SMALL_FLOAT32, LARGE_FLOAT32]


@pytest.mark.parametrize("margins", ALL)
def test_who_is_exact_where_draws_are_close_is_found_by_what_it_does_where_they_are_clear(
    margins: tuple[Margin, ...],
) -> None:
    """A third of its draws are close, and each of these speaks for it."""
    dice, history = random.Random(3), History()
    bands = [margin for margin in margins if margin.is_band]
    close, clear = bands[:-1], bands[-1]
    for _ in range(20):
        tokens = [Found(gap=0.0, lead=band.upto) for band in close for _ in range(5)]
        tokens += [Found(gap=5.0 * (dice.random() < 0.05), lead=clear.over + 1) for _ in range(43)]
        history = with_audit(history, count_above(tokens, margins), margins)
    assert is_convicted(history)


@pytest.mark.parametrize("margins", ALL)
def test_who_sends_what_it_likes_where_draws_are_close_is_found(margins: tuple[Margin, ...]) -> None:
    """As seldom as an honest peer may send the runner-up there, but far from any draw."""
    dice, history = random.Random(4), History()
    bands = [margin for margin in margins if margin.is_band]
    for _ in range(400):
        tokens = [
            Found(gap=30.0 * (dice.random() < band.rate), lead=min(band.upto, 5.0)) for band in bands for _ in range(64)
        ]
        history = with_audit(history, count_above(tokens, margins), margins)
    assert is_convicted(history)


@pytest.mark.parametrize("margins", ALL)
def test_what_is_off_in_a_context_is_off_once(margins: tuple[Margin, ...]) -> None:
    """However many completions begin alike, and whatever their leads: one machine rounds there as it does."""
    bands = [margin for margin in margins if margin.is_band]
    shared = [Found(gap=9.0, lead=min(band.upto, 5.0), context=1) for band in bands for _ in range(64)]
    counted = count_above(shared, margins)
    assert counted.above(margins) == 1
    assert counted.counts[len(bands) - 1] == Counted(above=1, trials=64), "where the draw was clearest"
    assert log_evidence(with_audit(History(), counted, margins)) < math.log(1e4)


@pytest.mark.parametrize("margins", ALL)
@given(st.data())
def test_the_evidence_is_fair_however_the_tokens_of_a_context_hang_together(
    margins: tuple[Margin, ...], data: st.DataObject
) -> None:
    """The worst that can be of one context's tokens: never two are off at once, so that something counts as often as
    the margins allow, where it says most. The expectation of every bet's likelihood ratio is at most 1."""
    for together in bets_on(margins):
        trials = [data.draw(st.integers(0, 64)) for _ in together]
        none, *each = (
            ratios([Counted(above=int(j == off), trials=count) for j, count in enumerate(trials)], together)
            for off in (None, *(place for place, count in enumerate(trials) if count))
        )
        chances = [count * margin.rate for count, margin in zip(trials, together, strict=True) if count]
        for bet, nothing in enumerate(none):
            left = 1.0
            mean = 0.0
            says = [(one[bet], chance) for one, chance in zip(each, chances, strict=True)]
            for ratio, chance in sorted(says, reverse=True):
                mean += min(left, chance) * math.exp(ratio)
                left -= min(left, chance)
            assert mean + left * math.exp(nothing) <= 1 + 1e-9


def ratios(counts: list[Counted], together: list[Margin]) -> list[float]:
    """Return the log likelihood ratios of one bet, for each multiple."""
    after = with_audit(History(), Audited(tokens=1, counts=tuple(counts)), together)
    own = bets_on(together).index(together) * len(MULTIPLES)
    return [wealth + math.log(2) for wealth in after.log_wealth[own : own + len(MULTIPLES)]]


@pytest.mark.parametrize("margins", ALL)
def test_every_token_is_held_to_one_margin_of_gaps(margins: tuple[Margin, ...]) -> None:
    """Whatever its lead; and to that of all tokens."""
    for lead in (0.0, 1e-3, 0.01, 0.03, 0.06, 0.1, 0.3, 1.0, 40.0, math.inf):
        wrong = count_above([Found(gap=max(1.0, lead), lead=lead)], margins)
        bands = [one.trials for one, margin in zip(wrong.counts, margins, strict=True) if margin.is_band]
        assert wrong.above(margins) == sum(bands) == 1
        [far] = [margin for margin in margins if margin.measure is Measure.GAP and not margin.is_band]
        assert wrong.counts[margins.index(far)].trials == 1
    assert len(bets_on(margins)) * len(MULTIPLES) == BETS, "a peer's history must stay when a model gets more margins"
