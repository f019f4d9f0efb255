"""Test whether a peer's audited tokens can still be an honest peer's; the result may be looked at after every audit.

An honest token differs from the verifier's draw only if rounding differs by more than the lead of that draw over the
runner-up (`protocol.sampling.verify_tokens`). The verifier knows this lead before it looks at the token. Given the
lead, the probability of a difference depends on the arithmetic, and is at most the `rate` of the margin that the lead
falls into. How often leads are small depends on the policy, and does not matter. If the lead is so small that rounding
decides, a token counts only if it is far below the draw, which no rounding explains.

A machine that is off in a context is off there in every completion that begins alike, so at most one token of each
context counts. Tokens of one context also have in common how far their log probabilities are from the verifier's. So
the mean over an audit is judged once, and single log probabilities once for each context.

Evidence is the wealth of a gambler who bets on dishonesty at fair odds. The bets are a mixture over three things. The
first is what is measured: the clearest draws, these and the next, down to all, with and without the clearest; and each
measure of log probabilities. The second is the rates that a dishonest peer might have, as the same multiple of every
margin's rate. The third is the audit at which the peer may have turned dishonest.

With weights w_k that sum to 1, and the likelihood ratio f_t of audit t, E_t = sum_k w_k f_k f_(k+1) ... f_t is a
non-negative supermartingale of mean <= 1 under honesty, and is computed by S_t = f_t (S_(t-1) + w_t). (Ville 1939;
Shafer, "Testing by betting", 2021; the mixture over the time of the change is Shiryaev's.)

Invariants:

- For any leases of an honest peer, and however often one looks, the probability that its evidence ever reaches 1/a is
  at most a (Ville's inequality).
- Long honest work buys nothing: a peer that turns dishonest is found about as soon as a newcomer, later only by the
  logarithm of the audits that went well.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

LIFETIME_ERROR = 1e-6
"""Largest probability that an honest peer is ever convicted, by any test."""

TESTS = 2
"""Tests of each peer: its audits, and its selective delivery (`learner.trust.selection_test`)."""

TEST_ERROR = LIFETIME_ERROR / TESTS
"""Error of one test, so that all together are wrong no more often than LIFETIME_ERROR (union bound)."""

MULTIPLES = (2.0, 5.0, 20.0, 1000.0)
"""Rates that are bet on, in multiples of the honest one: the first for peers that differ little from honesty, the last
for peers that fabricate tokens, for which a few tokens are enough."""

HIGHEST_RATE = 0.5
"""Highest rate that is bet on: a margin that half of all tokens exceed is of no use, and a cheat seldom has more."""

MOST_APART = 1.0
"""Largest number of nats that one token adds to a mean, so that one absurd token does not decide it."""

LEAST_OF_A_MEAN = 7
"""Least number of tokens of an audit whose mean is judged: shorter ones were not measured."""


class Measure(Enum):
    """The quantities that are measured, in nats at temperature 1.

    GAP is how far a token falls short of the verifier's own draw. LOGPROB is how far its claimed log probability is
    from the verifier's; each context counts once. MEAN is the mean of the latter over an audit.
    """

    GAP = "gap"
    LOGPROB = "logprob"
    MEAN = "mean logprob"


@dataclass(frozen=True, kw_only=True)
class Margin:
    """At most the share `rate` of an honest peer's tokens (0 < rate < 1) is above `above` nats; or of its contexts, or
    of its audits, by the measure. For gaps, this is about tokens for which the verifier's draw leads by more than
    `over` and at most `upto` nats."""

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
        """Whether it is about gaps of tokens with certain leads; otherwise it is about all tokens."""
        return not math.isinf(self.over) or not math.isinf(self.upto)

    @property
    def leads(self) -> str:
        """The leads of a band, in nats, in words: "0.06 to 0.15", "more than 0.4", "at most 0.03"."""
        if math.isinf(self.over):
            return f"at most {self.upto:g}"
        return f"more than {self.over:g}" if math.isinf(self.upto) else f"{self.over:g} to {self.upto:g}"


@dataclass(frozen=True, kw_only=True)
class Found:
    """The result of verifying one token, in nats at temperature 1. `gap` is by how much it falls short of the
    verifier's own draw, `lead` the lead of that draw, and `apart` how far its claimed log probability is from the
    verifier's. All are NaN if the verifier itself has no distribution. `context` is the same for all tokens that follow
    the same text; None means that no other token does."""

    gap: float
    lead: float
    apart: float = 0.0
    context: int | None = None


@dataclass(frozen=True, kw_only=True)
class Counted:
    """The trials of a margin, and how many of them were `above` it."""

    above: int
    trials: int


@dataclass(frozen=True, kw_only=True)
class Audited:
    """One audit of `tokens` judged tokens, counted by margin."""

    tokens: int
    counts: tuple[Counted, ...]

    def above(self, margins: Sequence[Margin]) -> int:
        """Return the number of contexts in which a token falls short of the verifier's draw by more than its margin."""
        pairs = zip(self.counts, margins, strict=True)
        return sum(counted.above for counted, margin in pairs if margin.is_band)


def count_above(tokens: Sequence[Found], margins: Sequence[Margin]) -> Audited:
    """Return the audit of these tokens. A token for which the verifier has no distribution does not count.

    A machine that is off in a context is off there in every completion that begins alike. So at most one token of each
    context counts as beyond its margin (for gaps, the one with the largest lead), though all are trials. The
    expectation of the likelihood ratio is then no larger, however the tokens depend on each other.
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
    """Return the margins about gaps of tokens with certain leads, the clearest draws first."""
    return sorted((margin for margin in margins if margin.is_band), key=lambda margin: -margin.over)


@dataclass(frozen=True, kw_only=True)
class History:
    """The evidence about one peer: the number of `audits` so far, and the logarithm of each bet's S; none before the
    first audit."""

    audits: int = 0
    log_wealth: tuple[float, ...] = ()

    @cached_property
    def log_evidence(self) -> float:
        """The value of the function of that name, kept because each delivery of a peer asks for it, and only an audit
        changes it."""
        if not self.log_wealth:
            return 0.0
        waiting = -math.log(self.audits + 1)  # the bet that the peer turns later
        bets = len(self.log_wealth)
        total = -math.inf
        for wealth in self.log_wealth:
            total = _log_add(total, _log_add(wealth, waiting) - math.log(bets))
        return total


def with_audit(history: History, audited: Audited, margins: Sequence[Margin]) -> History:
    """Return the history with one more audit; `margins` are those that it was counted by.

    They may differ from audit to audit, but not the number of bets on them: new margins are bet on from then on.
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
    """Return which margins are bet on together: gaps of the two clearest bands of leads, of these and the next, down to
    all, and the same without the clearest; and each other margin by itself.

    A bet on a peer that is exact where draws are close would lose there what it wins where they are clear. A bet on a
    peer whose weights are slightly off would lose over the many clear draws what it wins where they are less clear.
    """
    bands = bands_of(margins)
    runs = [bands[first:last] for first in (0, 1) for last in range(min(first + 2, len(bands)), len(bands) + 1)]
    return [*filter(None, runs), *([margin] for margin in margins if margin not in bands)]


def wagered(history: History, log_ratios: Sequence[float]) -> History:
    """Return the history with one more observation. `log_ratios` has the likelihood ratio of each bet; their number
    never changes."""
    before = history.log_wealth or (-math.inf,) * len(log_ratios)
    if len(before) != len(log_ratios):
        raise ValueError(f"a history of {len(before)} bets cannot continue with {len(log_ratios)}")
    audits = history.audits + 1
    enters = -math.log(audits * (audits + 1))  # weight of turning at this audit: 1/(k (k + 1)), which sums to 1
    after = tuple(_log_add(wealth, enters) + ratio for wealth, ratio in zip(before, log_ratios, strict=True))
    return History(audits=audits, log_wealth=after)


def log_evidence(history: History) -> float:
    """Return the logarithm of the evidence against honesty; 0 before the first audit, and seldom above it for honest
    peers."""
    return history.log_evidence


def is_convicted(history: History, error: float = TEST_ERROR) -> bool:
    """Return whether an honest peer would look like this in at most a share `error` of all lives."""
    return log_evidence(history) >= -math.log(error)


def _bet(margin: Margin, multiple: float) -> float:
    """Return the rate of a dishonest peer: this multiple of the margin's rate, within limits."""
    return max(margin.rate, min(HIGHEST_RATE, multiple * margin.rate))


def log_ratio(counted: Counted, margin: Margin) -> float:
    """Return the best of the bets on one margin, as the logarithm of its likelihood ratio."""
    return max(_log_ratio(counted, margin.rate, _bet(margin, multiple)) for multiple in MULTIPLES)


def _log_ratio(counted: Counted, honest: float, dishonest: float) -> float:
    """Return the log likelihood ratio of these counts, at one rate over the other. The expectation of the ratio is at
    most 1 at any rate below `honest`."""
    fewer = counted.trials - counted.above
    return counted.above * math.log(dishonest / honest) + fewer * math.log((1 - dishonest) / (1 - honest))


def _log_add(one: float, other: float) -> float:
    high, low = max(one, other), min(one, other)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
