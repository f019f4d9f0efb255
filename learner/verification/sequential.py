"""Whether a peer's audited tokens can still be an honest peer's: a test that may be looked at after every audit.

An honest token falls short of the verifier's own draw (`protocol.sampling.verify_tokens`) by more than a margin only
where float arithmetic differs, with a probability of at most that margin's `rate`, which was measured for the pair of
engines and number formats, whatever came before it: each has noise of its own. How far its log probability is from the
verifier's it has in common with every token that has the same context, and a group's completions share theirs; so of
those the mean over an audit is judged, once, and of single ones each context once. What always holds: whatever an
honest peer is dealt, and however often one looks, the probability that its evidence ever reaches 1/a is at most a
(Ville's inequality). What was honest for long buys nothing: a peer that turns is found about as soon as a newcomer, for
the logarithm of the audits that went well.

Evidence is the wealth of a gambler who bets on dishonesty at fair odds: a mixture over margins, over rates that a
dishonest peer might have, and over the audit at which it may have turned. With weights w_k that sum to 1, and the
likelihood ratio f_t of audit t, E_t = sum_k w_k f_k f_(k+1) ... f_t is a non-negative supermartingale of mean <= 1
under honesty, and is computed by S_t = f_t (S_(t-1) + w_t). (Ville 1939; Shafer, "Testing by betting", 2021; the
mixture over the time of the change is Shiryaev's.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

LIFETIME_ERROR = 1e-6
"""Probability at most that an honest peer is ever convicted."""

MULTIPLES = (3.0, 9.0, 27.0, 81.0)
"""Rates bet on, in multiples of the honest one."""

HIGHEST_RATE = 0.5
"""None above is bet on: a margin that half of all tokens pass is of no use, and a cheat has seldom more."""


MOST_APART = 1.0
"""Nats that one token adds to a mean at most, so that one that is out of all measure does not make it."""

LEAST_OF_A_MEAN = 7
"""Tokens of an audit from which on its mean is judged: of fewer none was measured."""


class Measure(Enum):
    """What is measured, in nats: of a token how far it falls short of the verifier's own draw, or how far its claimed
    log probability is from the verifier's, each context counting once; of an audit the mean of the latter."""

    GAP = "gap"
    LOGPROB = "logprob"
    MEAN = "mean logprob"


@dataclass(frozen=True, kw_only=True)
class Margin:
    """Of at most the share `rate`, 0 < rate < 1, of an honest peer's tokens is `measure` above `gap` nats; of its
    audits, where that is the mean."""

    gap: float
    rate: float
    measure: Measure = Measure.GAP

    def __post_init__(self) -> None:
        if not (self.gap >= 0 and 0 < self.rate < 1):
            raise ValueError(f"a margin of {self.gap} nats at a rate of {self.rate} tells nothing")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a verifier found of one token: its `gap`, and how far its claimed log probability is from the verifier's, in
    nats; NaN where the verifier itself has no distribution. `context`: the same of all tokens before which the same
    stands; None: of no other."""

    gap: float
    apart: float = 0.0
    context: int | None = None


@dataclass(frozen=True, kw_only=True)
class Audited:
    """One audit: of `tokens` that were judged, `above[m]` were above margin m; of their `contexts`, where its measure
    is the log probability, None: as many as tokens; 1 or 0 where it is the mean."""

    tokens: int
    above: tuple[int, ...]
    contexts: int | None = None

    def trials(self, margin: Margin) -> int:
        """Of how many there could have been."""
        match margin.measure:
            case Measure.GAP:
                return self.tokens
            case Measure.LOGPROB:
                return self.tokens if self.contexts is None else self.contexts
            case Measure.MEAN:
                return int(self.tokens >= LEAST_OF_A_MEAN)


def count_above(tokens: Sequence[Found], margins: Sequence[Margin]) -> Audited:
    """The audit of these tokens; one of which the verifier has no distribution counts as none."""
    judged = [token for token in tokens if not (math.isnan(token.gap) or math.isnan(token.apart))]
    furthest: dict[object, float] = {}
    for place, token in enumerate(judged):
        context = ("alone", place) if token.context is None else token.context
        furthest[context] = max(furthest.get(context, 0.0), token.apart)
    mean = math.fsum(min(token.apart, MOST_APART) for token in judged) / max(1, len(judged))
    above = []
    for margin in margins:
        match margin.measure:
            case Measure.GAP:
                above.append(sum(token.gap > margin.gap for token in judged))
            case Measure.LOGPROB:
                above.append(sum(apart > margin.gap for apart in furthest.values()))
            case Measure.MEAN:
                above.append(int(mean > margin.gap and len(judged) >= LEAST_OF_A_MEAN))
    return Audited(tokens=len(judged), above=tuple(above), contexts=len(furthest))


@dataclass(frozen=True, kw_only=True)
class History:
    """What is known of one peer: the `audits` so far, and the logarithm of each bet's S; none before the first."""

    audits: int = 0
    log_wealth: tuple[float, ...] = ()


def heard(history: History, audited: Audited, margins: Sequence[Margin]) -> History:
    """The history with one more audit; `margins` are those that its gaps were counted by.

    They may differ from audit to audit, in number not: what was calibrated anew is bet on from then on.
    """
    if len(audited.above) != len(margins):
        raise ValueError(f"{len(audited.above)} counts for {len(margins)} margins")
    counted = zip(margins, audited.above, strict=True)
    return wagered(
        history,
        [
            _log_ratio(audited.trials(margin), above, margin.rate, rate)
            for margin, above in counted
            for rate in _bets(margin)
        ],
    )


def wagered(history: History, log_ratios: Sequence[float]) -> History:
    """The history with one more observation, of which each bet, as many as ever, has this likelihood ratio."""
    before = history.log_wealth or (-math.inf,) * len(log_ratios)
    if len(before) != len(log_ratios):
        raise ValueError(f"a history of {len(before)} bets cannot go on with {len(log_ratios)}")
    audits = history.audits + 1
    enters = math.log(_weight(audits))
    after = tuple(_log_add(wealth, enters) + ratio for wealth, ratio in zip(before, log_ratios, strict=True))
    return History(audits=audits, log_wealth=after)


def log_evidence(history: History) -> float:
    """The logarithm of the evidence against honesty; 0 before the first audit, and seldom above it for the honest."""
    if not history.log_wealth:
        return 0.0
    waiting = math.log(_weight_after(history.audits))  # bet on a change that is still to come
    bets = len(history.log_wealth)
    total = -math.inf
    for wealth in history.log_wealth:
        total = _log_add(total, _log_add(wealth, waiting) - math.log(bets))
    return total


def is_convicted(history: History, error: float = LIFETIME_ERROR) -> bool:
    """Whether an honest peer would look like this once in 1/`error` lives at most."""
    return log_evidence(history) >= -math.log(error)


def _bets(margin: Margin) -> tuple[float, ...]:
    """Rates of a dishonest peer above that of the margin."""
    return tuple(max(margin.rate, min(HIGHEST_RATE, multiple * margin.rate)) for multiple in MULTIPLES)


def _log_ratio(tokens: int, above: int, honest: float, dishonest: float) -> float:
    """Of `above` in `tokens`, at one rate over the other. Its expectation is at most 1 at any rate below `honest`."""
    return above * math.log(dishonest / honest) + (tokens - above) * math.log((1 - dishonest) / (1 - honest))


def _weight(audit: int) -> float:
    """That the peer turns at this audit, from 1: 1/(k (k + 1)), which sums to 1."""
    return 1.0 / (audit * (audit + 1))


def _weight_after(audit: int) -> float:
    """That it turns later."""
    return 1.0 / (audit + 1)


def _log_add(one: float, other: float) -> float:
    high, low = max(one, other), min(one, other)
    return high if low == -math.inf else high + math.log1p(math.exp(low - high))
