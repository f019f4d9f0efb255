"""Define the margins of audits: by how much and how often an honest token may differ from the verifier's draw.

Pure. Tokens alone would be enough to detect a peer that samples in another way. Log probabilities are compared because
they steer training, and a peer that samples honestly could claim any.

Invariants:

- The rates are upper bounds over all pairs of engines and number formats that a swarm allows, so that no peer is blamed
  for the arithmetic of its machine.
- The number of margins is the same for a model of any size.
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
"""Largest number of parameters of a model of that class. Rounding adds up over layers and evens out over widths, so
what was measured with some models says little of others."""


LOUD = 16.0
"""The size of logits with which margins were measured: in three of the policies (seed 11), 99 % of the largest logits
were below it, with medians of 7, 8.5 and 11. From half of it up to it, floats have the same spacing."""


def _gaps(edges: Sequence[float], rates: Sequence[float]) -> list[Margin]:
    """Return the margins of gaps, one for each band of leads: at most the first edge, between one edge and the next,
    and above the last.

    `rates` has the share of the tokens in each band that may fall short of the draw. In the first band, it counts
    tokens that fall short by more than the first edge. In the others, it counts all that differ, since these fall short
    by at least the lead. Among all tokens, the share that may fall short by more than the last edge is that of the last
    band.
    """
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
"""Measured on eight pairs of engines and number formats (transformers and vLLM, float32 and bfloat16), with policies of
0.2 M parameters that have learned, at temperature 1 (seeds 11 and 12). The rates are at least twice the 95 % upper
bound of the worst pair. So many tokens differed from the draw, by the lead of the draw:

- at most 0.03 nats: 1 of 449 fell short by more than that;
- 0.03 to 0.06 nats: 17 of 432;
- 0.06 to 0.15 nats: 7 of 1,320;
- 0.15 to 0.4 nats: none of 3,396; the rate is larger, since with another seed it was 3 of 1,763;
- above 0.4 nats: 1 of 112,000.

The mean over a group of 7 to 56 tokens was above 0.01 nats in 9 of 2,100 groups. A log probability that is off is off
wherever the context is the same: one of 1200 groups had 7 of its 56 tokens beyond 0.15 nats. So single ones are judged
beyond all that was ever seen; the furthest was 0.49.
"""

MEAN_OF_MORE = Margin(above=0.03, rate=0.1, measure=Measure.MEAN)
"""With policies of 51 M parameters, 114,000 tokens in 256 groups of each pair, no group's mean was above 0.026 nats."""

SMALL = (
    *_gaps(EDGES, (*RATES[:2], 0.03, *RATES[3:])),
    MEAN_OF_MORE,
    Margin(above=1.0, rate=1e-3, measure=Measure.LOGPROB),
)
"""Not measured. Each margin is the wider one of the sizes below and above."""

MEDIUM_EDGES, MEDIUM_RATES = (0.03, 0.06, 0.08, 0.2), (0.02, 0.1, 0.03, 7e-4, 1e-4)
MEDIUM = (
    *_gaps(MEDIUM_EDGES, MEDIUM_RATES),
    MEAN_OF_MORE,
    Margin(above=1.0, rate=1e-3, measure=Measure.LOGPROB),
)
"""Measured in the same way with three policies of 51 M parameters, 114,000 tokens of each pair (seeds 12, 13 and 14).
So many tokens differed from the draw, by the lead of the draw:

- at most 0.03 nats: 4 of 2,213 fell short by more than that;
- 0.03 to 0.06 nats: 64 of 2,015, and with one policy 36 of 681;
- 0.06 to 0.08 nats: 8 of 1,314, and with one policy 5 of 442;
- 0.08 to 0.2 nats: none of 7,000. With another policy (seed 0) it was one of 8,177, which led by 0.105 nats. Together
  this is 1 of 15,200, and 7 in 10,000 are twice the upper bound of that;
- above 0.2 nats: none of 102,000.

No log probability was off by more than 0.16; with another policy, on an H200, one was off by 0.68.

A policy of 0.2 M has few errors, with large ones among them; one of 51 M has many, and none that is large. With the
margins of TINY, half of the sets of 8192 tokens that a 51 M policy (seed 0) made in 4 bits were not detected.
"""

LARGE_EDGES, LARGE_RATES = (0.05, 0.1, 0.2, 0.5), (0.1, 0.4, 0.2, 0.1, 3e-3)
LARGE = (
    *_gaps(LARGE_EDGES, LARGE_RATES),
    Margin(above=0.1, rate=0.1, measure=Measure.MEAN),
    Margin(above=1.5, rate=3e-3, measure=Measure.LOGPROB),
)
"""Based on what others measured: Token-DiFR (arXiv 2511.20621) reproduced 98 % and more of the tokens of honest 8 B
models in bfloat16 exactly, across GPUs and engines. So four in ten close draws may differ, and three in a thousand
clear ones.

With a policy of 0.6 B on an H200, 43,000 tokens of each pair, 12 of 5,900 draws that led by 0.05 to 0.1 nats differed,
and none of 245,000 that led by more (`benchmarks/audit_gpu.py`). That policy speaks only a small language, so the
margins stay as wide.

A peer that fabricates tokens, takes the likeliest ones, or computes with another model exceeds these by tens of
percents. A peer that quantises with care may not.
"""

FINER = 8
"""Leads an eighth as large are held to the same rates. Graphics cards may round the factors of float32 products to ten
bits (TF32); bfloat16 rounds these, and all else, to seven. On an H200 with TF32, fewer than 10 of 372,000 tokens fell
short, by 0.00014 nats at most, and no log probability was 0.01 nats apart (0.5 M, 51 M and 0.6 B).

Between float32 and float32, no token of 256,000 differed, at any lead, and no log probability was 0.001 nats apart, on
processors, with transformers and vLLM. The same held for 573,000 tokens on that card and its host, except for a tie.
"""

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
"""For a mixture of experts whose choices are not recorded. Sometimes a router of one engine chooses another expert than
that of the other engine, and then a draw that leads clearly differs. Measured on four policies (seeds 21 to 24) of 1.3
M parameters, in 6 layers of 16 experts, 2 a token, at 1.6 nats a token. The rates are at least twice the 95 % upper
bound of the worst pair. So many tokens differed from the draw, by the lead of the draw:

- 0.03 to 0.06 nats: 211 of 4,131;
- 0.06 to 0.15 nats: 191 of 11,600;
- 0.15 to 0.4 nats: 172 of 27,900;
- above 0.4 nats: 99 of 115,800.

No group's mean was above 0.037 nats.
"""

LARGE_MIXTURE = (
    *_gaps(LARGE_EDGES, (*LARGE_RATES[:4], 0.01)),
    Margin(above=0.2, rate=0.1, measure=Measure.MEAN),
    Margin(above=1.5, rate=0.01, measure=Measure.LOGPROB),
)
"""Not measured. Clear draws may differ three times as often as with dense models of that size, whose own rate is above
what was seen."""

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
"""Float32 is as exact here as elsewhere, except for TF32. With that, routers choose another expert an eighth as often,
and the effect is as large. It was imitated on a processor by rounding what enters a product to ten bits: 4 of 31,300
draws that led by 0.05 nats or more differed, and 10 of 31,800 log probabilities were 0.15 nats apart."""

BETS = len(MULTIPLES) * len(bets_on(TINY))
"""The same for all margins, so that the evidence about a peer stays valid when the model grows."""


class Arithmetic(Enum):
    """The numbers in which the engines of a swarm compute: what their owners choose, or float32 for all."""

    ANY = "any"
    FLOAT32 = "float32"


class Experts(Enum):
    """An audit's knowledge of the experts that made a token."""

    NONE = "none"
    """The model is dense."""
    TOLD = "told"
    """Records name the experts, and the audit follows them where its own router nearly chose them. The rest is
    rounding, except for prompts, which route themselves: one of 164,000 tokens fell short by more than 0.4 nats. Group
    means are up to 0.025 nats, so TINY does not fit; MEDIUM was not measured with mixtures."""
    UNKNOWN = "unknown"
    """The model is a mixture of experts, and records do not name them."""


def experts_in(config: object, *, told: bool) -> Experts:
    """Return what is known of the experts of the model with this config.json. `told`: whether the learner's leases ask
    for the experts of each token."""
    if not isinstance(config, dict) or not has_experts(config):
        return Experts.NONE
    return Experts.TOLD if told else Experts.UNKNOWN


def margins_of(
    parameters: int, arithmetic: Arithmetic = Arithmetic.ANY, experts: Experts = Experts.NONE
) -> tuple[Margin, ...]:
    """Return the margins for a model of this many parameters, experts included, in a swarm that computes so."""
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
"""How far two programs may be apart that both compute one model in float32 on processors. Between transformers and
vLLM, no log probability of 256,000 was 0.001 nats apart (0.2 M and 51 M), and most are 1e-5. Models beyond
MEDIUM_PARAMETERS were not measured; rounding adds up over layers, so they may have ten times as much."""

ROUTED_APART = {Arithmetic.ANY: 0.5, Arithmetic.FLOAT32: 0.1}
"""The same for a mixture whose experts are not recorded: a completion may have only one or two tokens, and one of them
may move by several nats. Programs that compute another model are that far apart at most tokens."""

ROUTED_EXACT = Tolerance(token=0.5, mean=0.02)
"""In float32 on processors: one of 120,000 tokens was 0.016 nats apart, after a router that chose another expert."""

SELDOM_APART = {Arithmetic.ANY: 0.03, Arithmetic.FLOAT32: 0.01}
"""No mean over a completion was further apart, in any pair that was measured. A margin may be smaller, since one honest
audit in thirty may exceed it. But a comparison that is made once, and stops a whole run, must not fail by chance."""


def tolerance_of(
    parameters: int, arithmetic: Arithmetic, *, on_processors: bool, experts: Experts = Experts.NONE
) -> Tolerance:
    """Return how far log probabilities of one completion may be apart, as computed by two programs that share the
    model, of this many parameters, in numbers of `arithmetic`. On GPUs, float32 may be rounded to ten bits (see FINER).
    """
    if experts is Experts.UNKNOWN:
        is_exact = arithmetic is Arithmetic.FLOAT32 and on_processors
        return ROUTED_EXACT if is_exact else Tolerance(token=math.inf, mean=ROUTED_APART[arithmetic])
    if arithmetic is Arithmetic.FLOAT32 and on_processors:
        return EXACT if parameters <= MEDIUM_PARAMETERS else LARGE_EXACT
    above = {margin.measure: margin.above for margin in margins_of(parameters, arithmetic, experts)}
    return Tolerance(token=above[Measure.LOGPROB], mean=max(above[Measure.MEAN], SELDOM_APART[arithmetic]))
