"""By how much the verifier's draw may lead where an honest token is another, and how often: the margins of audits.

Pure. What always holds: the rates are upper bounds over all pairs of engines and number formats that a swarm allows, so
that nobody is blamed for the arithmetic of their machine, and however large the model, there are as many margins.
Tokens alone would be enough to see who draws them otherwise; log probabilities are compared since they steer training,
and who draws honestly could claim any.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from enum import Enum

from learner.artifacts.expert_routing import has_experts
from learner.trial.logprob_agreement import Tolerance
from learner.trust.ban_evidence import MULTIPLES, Margin, Measure, bets_on

TINY_PARAMETERS = 5_000_000
SMALL_PARAMETERS = 20_000_000
MEDIUM_PARAMETERS = 100_000_000
"""Of models as large as that or smaller. Rounding adds up over layers and evens out over widths, so that what was
measured of some models says little of others."""


LOUD = 16.0
"""What margins were measured with: of three of the policies (seed 11) 99 % of the largest logits were below, their
medians 7, 8.5 and 11. From half of it to it floats are spaced alike."""


def _gaps(edges: Sequence[float], rates: Sequence[float]) -> list[Margin]:
    """Where the verifier's draw leads by at most the first edge, and then by between one edge and the next, so many
    tokens may fall short of it: by more than the first edge, or at all. Of all tokens as many fall short by more than
    the last edge as where it leads by more."""
    over, upto = (-math.inf, *edges), (*edges, math.inf)
    bands = zip((edges[0], *edges), rates, over, upto, strict=True)
    far = Margin(above=edges[-1], rate=rates[-1], measure=Measure.GAP)
    return [*(Margin(above=a, rate=r, measure=Measure.GAP, over=o, upto=u) for a, r, o, u in bands), far]


EDGES, RATES = (0.03, 0.06, 0.15, 0.4), (0.03, 0.12, 0.02, 5e-3, 1e-4)
TINY = (
    *_gaps(EDGES, RATES),
    Margin(above=0.01, rate=0.03, measure=Measure.MEAN),
    Margin(above=1.0, rate=1e-3, measure=Measure.LOGPROB),
)
"""Of eight pairs of engines and number formats (transformers and vLLM, float32 and bfloat16), and policies of 0.2 M
that have learned, at temperature 1 (seeds 11 and 12), the rates are twice the upper bound (95 %) of the worst pair, and
more: of draws that led by 0.03 to 0.06 nats 17 of 432 were others, to 0.15 nats 7 of 1,320, to 0.4 nats none of 3,396,
beyond that 1 of 112,000; where they led by at most 0.03, 1 of 449 tokens fell short by more. To 0.4 nats the rate is
larger, since of another seed 3 of 1,763 were. The mean over a group of 7 to 56 tokens was above 0.01 nats in 9 of
2,100 groups. What is off in a log probability is off wherever the context is the same: of 1200 groups one had 7 of its
56 tokens beyond 0.15 nats; so single ones are judged where none was ever seen, the furthest being 0.49."""

MEAN_OF_MORE = Margin(above=0.03, rate=0.1, measure=Measure.MEAN)
"""Of policies of 51 M, 114,000 tokens in 256 groups of each pair, no group's mean was above 0.026 nats."""

SMALL = (
    *_gaps(EDGES, (*RATES[:2], 0.03, *RATES[3:])),
    MEAN_OF_MORE,
    Margin(above=1.0, rate=1e-3, measure=Measure.LOGPROB),
)
"""Not measured: between those above and below, of either the wider ones."""

MEDIUM_EDGES, MEDIUM_RATES = (0.03, 0.06, 0.08, 0.2), (0.02, 0.1, 0.03, 7e-4, 1e-4)
MEDIUM = (
    *_gaps(MEDIUM_EDGES, MEDIUM_RATES),
    MEAN_OF_MORE,
    Margin(above=1.0, rate=1e-3, measure=Measure.LOGPROB),
)
"""Of three policies of 51 M, 114,000 tokens of each pair (seeds 12, 13 and 14), likewise: of draws that led by 0.03 to
0.06 nats 64 of 2,015 were others, and of one policy 36 of 681; to 0.08 nats 8 of 1,314, and of one 5 of 442; to 0.2
nats none of 7,000, and beyond that none of 102,000. Of another policy (seed 0) one of 8,177 was, which led by 0.105
nats: together 1 of 15,200, of which 7 in 10,000 are twice the upper bound. Where they led by at most 0.03, 4 of 2,213
tokens fell short by more. No log probability was off by more than 0.16; of
another one on an H200 one was by 0.68. A policy of 0.2 M has few errors, and large
ones among them; one of 51 M has many, and none that is large: with the margins of the former half of the sets of 8192
tokens that were made in 4 bits of one of the latter (seed 0) were not found."""

LARGE_EDGES, LARGE_RATES = (0.05, 0.1, 0.2, 0.5), (0.1, 0.4, 0.2, 0.1, 3e-3)
LARGE = (
    *_gaps(LARGE_EDGES, LARGE_RATES),
    Margin(above=0.1, rate=0.1, measure=Measure.MEAN),
    Margin(above=1.5, rate=3e-3, measure=Measure.LOGPROB),
)
"""By what others saw: Token-DiFR (arXiv 2511.20621) 98 % and more of the tokens of honest 8 B models in bfloat16
exactly, across GPUs and engines: of close draws four in ten may be others, of clear ones three in a thousand. Of a
policy of 0.6 B on an H200, 43,000 tokens of each pair, 12 of 5,900 draws that led by 0.05 to 0.1 nats were others and
none of 245,000 that led by more (`benchmarks/audit_gpu.py`); it speaks a little language, so the margins stay as wide.
Who makes tokens up, takes the likeliest, or computes with another model is beyond these by tens of percents; who
quantises with care may not be."""

FINER = 8
"""Graphics cards may round the factors of float32 products to ten bits (TF32); bfloat16 rounds these, and everything
else, to seven. So leads an eighth as large are held to the same rates. On an H200 with TF32 fewer than 10 of 372,000
tokens fell short, by 0.00014 nats at most, and no log probability was 0.01 nats apart (0.5 M, 51 M and 0.6 B). Between
float32 and float32 no token of 256,000 was another, at any lead, and no log probability was 0.001 nats apart, on
processors, transformers and vLLM; nor was one of 573,000 on that card and its host, but for a tie."""

SMALL_FLOAT32 = (
    *_gaps([edge / FINER for edge in EDGES], RATES),
    Margin(above=0.002, rate=0.02, measure=Measure.MEAN),
    Margin(above=0.15, rate=1e-4, measure=Measure.LOGPROB),
)
LARGE_FLOAT32 = (
    *_gaps([edge / FINER for edge in LARGE_EDGES], LARGE_RATES),
    Margin(above=0.02, rate=0.1, measure=Measure.MEAN),
    Margin(above=0.3, rate=4e-4, measure=Measure.LOGPROB),
)

MIXTURE_RATES = (0.03, 0.12, 0.045, 0.015, 2.5e-3)
MIXTURE = (
    *_gaps(EDGES, MIXTURE_RATES),
    Margin(above=0.05, rate=0.1, measure=Measure.MEAN),
    Margin(above=1.5, rate=1e-3, measure=Measure.LOGPROB),
)
"""Of a mixture whose experts nobody tells. Now and then a router of one engine chooses another expert than that of the
other engine, and then a draw that leads clearly is another. Four policies (seeds 21 to 24) of 1.3 M parameters were
measured, in 6 layers of 16 experts, 2 a token, at 1.6 nats a token. Rates are at least twice the upper bound (95 %) of
the worst pair: of draws that led by 0.03 to 0.06 nats 211 of 4,131 were others, to 0.15 nats 191 of 11,600, to 0.4 nats
172 of 27,900, beyond that 99 of 115,800. No group's mean was above 0.037 nats."""

LARGE_MIXTURE = (
    *_gaps(LARGE_EDGES, (*LARGE_RATES[:4], 0.01)),
    Margin(above=0.2, rate=0.1, measure=Measure.MEAN),
    Margin(above=1.5, rate=0.01, measure=Measure.LOGPROB),
)
"""Not measured. Clear draws may be others three times as often as those of dense models of that size, whose own rate
is above what was seen."""

MIXTURE_FLOAT32 = (
    *_gaps([edge / FINER for edge in EDGES], (*MIXTURE_RATES[:4], 1e-3)),
    Margin(above=0.01, rate=0.1, measure=Measure.MEAN),
    Margin(above=0.15, rate=2e-3, measure=Measure.LOGPROB),
)
LARGE_MIXTURE_FLOAT32 = (
    *_gaps([edge / FINER for edge in LARGE_EDGES], LARGE_RATES),
    Margin(above=0.1, rate=0.1, measure=Measure.MEAN),
    Margin(above=0.3, rate=4e-3, measure=Measure.LOGPROB),
)
"""Float32 is as exact here as elsewhere, but for TF32, where routers choose otherwise an eighth as often, and what
follows is as large. It was imitated on a processor by rounding what enters a product to ten bits: of draws that led by
0.05 nats or more 4 of 31,300 were others, and 10 of 31,800 log probabilities were 0.15 nats apart."""

BETS = len(MULTIPLES) * len(bets_on(TINY))
"""On any of them: what was heard of a peer goes on when the model grows."""


class Arithmetic(Enum):
    """In which numbers the engines of a swarm compute: whatever their owners choose, or float32, all of them."""

    ANY = "any"
    FLOAT32 = "float32"


class Experts(Enum):
    """What an audit knows of the experts that made a token."""

    NONE = "none"
    """The model is dense."""
    TOLD = "told"
    """Records name them, and the audit follows them where its own router nearly chose them. What is left is rounding,
    but for prompts, which route themselves: of 164,000 tokens one fell short by more than 0.4 nats. Group means are up
    to 0.025 nats, so TINY does not fit; MEDIUM was not measured of mixtures."""
    UNKNOWN = "unknown"
    """The model is a mixture of experts, and nobody asks for them."""


def experts_in(config: object, *, told: bool) -> Experts:
    """Of the model with this config.json; `told`: whether the learner's leases ask for the experts of each token."""
    if not isinstance(config, dict) or not has_experts(config):
        return Experts.NONE
    return Experts.TOLD if told else Experts.UNKNOWN


def margins_of(
    parameters: int, arithmetic: Arithmetic = Arithmetic.ANY, experts: Experts = Experts.NONE
) -> tuple[Margin, ...]:
    """Return the margins for a model of so many parameters, experts included, in a swarm that computes so."""
    of_size = {
        (Arithmetic.ANY, Experts.NONE): (TINY, SMALL, MEDIUM, LARGE),
        (Arithmetic.ANY, Experts.TOLD): (SMALL, SMALL, SMALL, LARGE),
        (Arithmetic.ANY, Experts.UNKNOWN): (MIXTURE, MIXTURE, MIXTURE, LARGE_MIXTURE),
        (Arithmetic.FLOAT32, Experts.NONE): (SMALL_FLOAT32, SMALL_FLOAT32, SMALL_FLOAT32, LARGE_FLOAT32),
        (Arithmetic.FLOAT32, Experts.TOLD): (SMALL_FLOAT32, SMALL_FLOAT32, SMALL_FLOAT32, LARGE_FLOAT32),
        (Arithmetic.FLOAT32, Experts.UNKNOWN): (*[MIXTURE_FLOAT32] * 3, LARGE_MIXTURE_FLOAT32),
    }[arithmetic, experts]
    return of_size[bisect_left((TINY_PARAMETERS, SMALL_PARAMETERS, MEDIUM_PARAMETERS), parameters)]


EXACT = Tolerance(token=1e-3, mean=1e-4)
LARGE_EXACT = Tolerance(token=1e-2, mean=1e-3)
"""How far two programs may be apart that both compute one model in float32 on processors: between transformers and vLLM
no log probability of 256,000 was 0.001 nats apart (0.2 M and 51 M), and most are 1e-5. Of models beyond
MEDIUM_PARAMETERS nobody measured it; rounding adds up over layers, so ten times as much."""

ROUTED_APART = {Arithmetic.ANY: 0.5, Arithmetic.FLOAT32: 0.1}
"""The same of a mixture whose experts nobody tells: a completion may have a token or two, of which one moves by several
nats. Programs that compute another model are that far apart at most tokens."""

ROUTED_EXACT = Tolerance(token=0.5, mean=0.02)
"""In float32 on processors: of 120,000 tokens one was 0.016 nats apart, behind a router that chose otherwise."""

SELDOM_APART = {Arithmetic.ANY: 0.03, Arithmetic.FLOAT32: 0.01}
"""No mean over a completion was further apart, in any pair that was measured. A margin may be less: one honest audit in
thirty may pass it, and a comparison that is made once, and refuses a whole run, must not fail by chance."""


def tolerance_of(
    parameters: int, arithmetic: Arithmetic, *, on_processors: bool, experts: Experts = Experts.NONE
) -> Tolerance:
    """How far log probabilities of one completion may be apart, as two programs compute them that share the model, of
    so many parameters, in numbers of `arithmetic`. On GPUs float32 may be rounded to ten bits (see FINER)."""
    if experts is Experts.UNKNOWN:
        is_exact = arithmetic is Arithmetic.FLOAT32 and on_processors
        return ROUTED_EXACT if is_exact else Tolerance(token=math.inf, mean=ROUTED_APART[arithmetic])
    if arithmetic is Arithmetic.FLOAT32 and on_processors:
        return EXACT if parameters <= MEDIUM_PARAMETERS else LARGE_EXACT
    above = {margin.measure: margin.above for margin in margins_of(parameters, arithmetic, experts)}
    return Tolerance(token=above[Measure.LOGPROB], mean=max(above[Measure.MEAN], SELDOM_APART[arithmetic]))
