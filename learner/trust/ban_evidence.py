"""Whether a peer's audited tokens can still be an honest peer's: a test that may be looked at after every audit.

An honest token is another than the verifier draws only where rounding differs by more than the verifier's own draw
leads the runner-up (`protocol.sampling.verify_tokens`). So given that lead, which the verifier knows before it looks at
the token, it is another with a probability that goes by the arithmetic, at most the `rate` of the margin that the lead
falls into; how often leads are so small goes by the policy, and does not matter. Where it is so small that rounding
decides, a token that is far below the draw is nobody's rounding, and counts. A machine that is off in a context is off
there in every completion that begins alike, so of each context one token at most counts.  How far its log probability
is from the verifier's such tokens have in common; so of those the mean over an audit is judged, once, and of single
ones each context once. What always holds: whatever an honest peer is dealt, and however often one looks, the
probability that its evidence ever reaches 1/a is at most a (Ville's inequality). What was honest for long buys nothing:
a peer that turns is found about as soon as a newcomer, for the logarithm of the audits that went well.

Evidence is the wealth of a gambler who bets on dishonesty at fair odds: a mixture over what is measured (the clearest
draws, these and the next, down to all, with the clearest and without; each measure of log probabilities), over rates
that a dishonest peer might have, the same multiple of every margin's, and over the audit at which it may have turned.
With weights w_k that sum to 1, and the likelihood ratio f_t of audit t, E_t = sum_k w_k f_k f_(k+1) ... f_t is a
non-negative supermartingale of mean <= 1 under honesty, and is computed by S_t = f_t (S_(t-1) + w_t). (Ville 1939;
Shafer, "Testing by betting", 2021; the mixture over the time of the change is Shiryaev's.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

LIFETIME_ERROR = 1e-6
"""Probability at most that an honest peer is ever convicted, by whatever test."""

TESTS = 2
"""Of each peer: what its audits say, and what it may have chosen (`learner.trust.selection_test`)."""

TEST_ERROR = LIFETIME_ERROR / TESTS
"""Of one of them, so that all together are wrong no more often than LIFETIME_ERROR (union bound)."""

MULTIPLES = (2.0, 5.0, 20.0, 1000.0)
"""Rates bet on, in multiples of the honest one: the first for what differs little from honesty, the last for who makes
tokens up, of whom a few are enough."""

HIGHEST_RATE = 0.5
"""None above is bet on: a margin that half of all tokens pass is of no use, and a cheat has seldom more."""

MOST_APART = 1.0
"""Nats that one token adds to a mean at most, so that one that is out of all measure does not make it."""

LEAST_OF_A_MEAN = 7
"""Tokens of an audit from which on its mean is judged: of fewer none was measured."""


class Measure(Enum):
    """What is measured, in nats at temperature 1: of a token how far it falls short of the verifier's own draw, or how
    far its claimed log probability is from the verifier's, each context counting once; of an audit the mean of the
    latter."""

    GAP = "gap"
    LOGPROB = "logprob"
    MEAN = "mean logprob"


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Of an honest peer's tokens at most the share `rate`, 0 < rate < 1, is above `above` nats; of its contexts or its
    audits, by the measure. Of gaps this is said of tokens where the verifier's draw leads by more than `over` and at
    most `upto` nats."""

    above: float
    rate: float
    measure: Measure
    over: float = -math.inf
    upto: float = math.inf

    def __post_init__(self) -> None:
        fits = self.over < self.upto if self.measure is Measure.GAP else not self.is_band
        if not (self.above >= 0 and fits and 0 < self.rate < 1):
            raise ValueError(f"{self} tells nothing")

    @property
    def is_band(self) -> bool:
        """Whether it is about gaps of tokens of some leads; else it is about all."""
        return not math.isinf(self.over) or not math.isinf(self.upto)

    @property
    def leads(self) -> str:
        """Of a band, in nats, as people are told: "0.06 to 0.15", "more than 0.4", "at most 0.03"."""
        if math.isinf(self.over):
            return f"at most {self.upto:g}"
        return f"more than {self.over:g}" if math.isinf(self.upto) else f"{self.over:g} to {self.upto:g}"


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a verifier found of one token, in nats at temperature 1: the `gap` by which it falls short of the verifier's
    own draw, the `lead` of that draw, and how far `apart` its claimed log probability is from the verifier's; NaN where
    the verifier itself has no distribution. `context`: the same of all tokens before which the same stands; None: of no
    other."""

    gap: float
    lead: float
    apart: float = 0.0
    context: int | None = None


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Of what a margin is about: `above` of `trials`."""

    above: int
    trials: int


@dataclass(frozen=True, kw_only=True)
class Audited:
    """One audit of `tokens` that were judged, counted by margin."""

    tokens: int
    counts: tuple[Counted, ...]

    def above(self, margins: Sequence[Margin]) -> int:
        """Contexts in which a token falls short of the verifier's draw by more than the margin that it is held to."""
        pairs = zip(self.counts, margins, strict=True)
        return sum(counted.above for counted, margin in pairs if margin.is_band)


def count_above(tokens: Sequence[Found], margins: Sequence[Margin]) -> Audited:
    """The audit of these tokens; one of which the verifier has no distribution counts as none.

    A machine that is off in a context is off there in every completion that begins alike. So in each context one token
    at most is counted as beyond its margin, of gaps that with the largest lead, though all are trials: the expectation
    of the likelihood ratio is no larger then, however they hang together.
    """
    judged = [token for token in tokens if not any(map(math.isnan, (token.gap, token.lead, token.apart)))]
    contexts = [("alone", place) if token.context is None else token.context for place, token in enumerate(judged)]
    counts = dict[Margin, Counted]()
    blamed = set[object]()
    for margin in bands_of(margins):
        here = [place for place, token in enumerate(judged) if margin.over < token.lead <= margin.upto]
        off = {contexts[place] for place in here if judged[place].gap > margin.above} - blamed
        blamed |= off
        counts[margin] = Counted(above=len(off), trials=len(here))
    mean = math.fsum(min(token.apart, MOST_APART) for token in judged) / max(1, len(judged))
    is_judged = len(judged) >= LEAST_OF_A_MEAN
    for margin in margins:
        match margin.measure:
            case Measure.GAP if not margin.is_band:
                far = {context for context, token in zip(contexts, judged, strict=True) if token.gap > margin.above}
                counts[margin] = Counted(above=len(far), trials=len(judged))
            case Measure.LOGPROB:
                far = {context for context, token in zip(contexts, judged, strict=True) if token.apart > margin.above}
                counts[margin] = Counted(above=len(far), trials=len(set(contexts)))
            case Measure.MEAN:
                counts[margin] = Counted(above=int(is_judged and mean > margin.above), trials=int(is_judged))
    return Audited(tokens=len(judged), counts=tuple(counts[margin] for margin in margins))


def bands_of(margins: Sequence[Margin]) -> list[Margin]:
    """Those about gaps of tokens of some leads, of the clearest draws first."""
    return sorted((margin for margin in margins if margin.is_band), key=lambda margin: -margin.over)


@dataclass(frozen=True, kw_only=True)
class History:
    """What is known of one peer: the `audits` so far, and the logarithm of each bet's S; none before the first."""

    audits: int = 0
    log_wealth: tuple[float, ...] = ()

    @cached_property
    def log_evidence(self) -> float:
        """As the function of that name says. Each delivery of a peer asks, and it changes with an audit."""
        if not self.log_wealth:
            return 0.0
        waiting = -math.log(self.audits + 1)  # bet on a change that is still to come: that it turns later
        bets = len(self.log_wealth)
        total = -math.inf
        for wealth in self.log_wealth:
            total = _log_add(total, _log_add(wealth, waiting) - math.log(bets))
        return total


def heard(history: History, audited: Audited, margins: Sequence[Margin]) -> History:
    """The history with one more audit; `margins` are those that it was counted by.

    They may differ from audit to audit, the number of bets on them not: what was calibrated anew is bet on from then
    on.
    """
    if len(audited.counts) != len(margins):
        raise ValueError(f"{len(audited.counts)} counts for {len(margins)} margins")
    counted = dict(zip(margins, audited.counts, strict=True))
    return wagered(
        history,
        [
            math.fsum(_log_ratio(counted[margin], margin.rate, _bet(margin, multiple)) for margin in together)
            for together in bets_on(margins)
            for multiple in MULTIPLES
        ],
    )


def bets_on(margins: Sequence[Margin]) -> list[list[Margin]]:
    """Which margins are bet on together: gaps of the two clearest bands of leads, of these and the next, down to all,
    and the same but for the clearest; each other margin by itself. A bet on a peer that is exact where draws are close
    would lose there what it wins where they are clear; and one on a peer whose weights are a little off would lose,
    over the many clear draws, what it wins where they are less so."""
    bands = bands_of(margins)
    runs = [bands[first:last] for first in (0, 1) for last in range(min(first + 2, len(bands)), len(bands) + 1)]
    return [*filter(None, runs), *([margin] for margin in margins if margin not in bands)]


def wagered(history: History, log_ratios: Sequence[float]) -> History:
    """The history with one more observation, of which each bet, as many as ever, has this likelihood ratio."""
    before = history.log_wealth or (-math.inf,) * len(log_ratios)
    if len(before) != len(log_ratios):
        raise ValueError(f"a history of {len(before)} bets cannot go on with {len(log_ratios)}")
    audits = history.audits + 1
    enters = -math.log(audits * (audits + 1))  # that the peer turns at this audit: 1/(k (k + 1)), which sums to 1
    after = tuple(_log_add(wealth, enters) + ratio for wealth, ratio in zip(before, log_ratios, strict=True))
    return History(audits=audits, log_wealth=after)


def log_evidence(history: History) -> float:
    """The logarithm of the evidence against honesty; 0 before the first audit, and seldom above it for the honest."""
    return history.log_evidence


def is_convicted(history: History, error: float = TEST_ERROR) -> bool:
    """Whether an honest peer would look like this once in 1/`error` lives at most."""
    return log_evidence(history) >= -math.log(error)


def _bet(margin: Margin, multiple: float) -> float:
    """The rate of a dishonest peer, so many times that of the margin."""
    return max(margin.rate, min(HIGHEST_RATE, multiple * margin.rate))


def log_ratio(counted: Counted, margin: Margin) -> float:
    """The best of the bets on one margin, as the logarithm of its likelihood ratio."""
    return max(_log_ratio(counted, margin.rate, _bet(margin, multiple)) for multiple in MULTIPLES)


def _log_ratio(counted: Counted, honest: float, dishonest: float) -> float:
    """Of these counts, at one rate over the other. Its expectation is at most 1 at any rate below `honest`."""
    fewer = counted.trials - counted.above
    return counted.above * math.log(dishonest / honest) + fewer * math.log((1 - dishonest) / (1 - honest))


def _log_add(one: float, other: float) -> float:
    high, low = max(one, other), min(one, other)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
