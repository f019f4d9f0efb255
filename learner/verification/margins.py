"""By how much an honest token may fall short of what the verifier draws, and how often: the margins of every audit.

Pure. What always holds: the rates are upper bounds over all pairs of engines and number formats that a swarm allows, so
that nobody is blamed for the arithmetic of their machine, and however large the model, there are as many margins. A
token's gap is how far it lies below the draw of its seed, in nats, by the weights that its record names. Tokens alone
would be enough to see who draws them otherwise; log probabilities are compared since they steer training, and who draws
honestly could claim any.
"""

from __future__ import annotations

from enum import Enum

from learner.verification.sequential import Margin, Measure

TINY_BYTES = 20_000_000
SMALL_BYTES = 400_000_000
"""Weights of five, and of a hundred million parameters in float32. Rounding adds up over layers and widths, so that
what was measured of small models says little of large ones."""

TINY = (
    Margin(gap=0.03, rate=8e-4),
    Margin(gap=0.05, rate=5e-4),
    Margin(gap=0.01, rate=0.02, measure=Measure.MEAN),
    Margin(gap=1.0, rate=1e-3, measure=Measure.LOGPROB),
)
"""Of 50,000 to 67,000 tokens of each of eight pairs of engines and number formats (transformers and vLLM, float32 and
bfloat16), drawn from four policies of 0.2 M that have learned, the rates of gaps are twice the upper bound (95 %) of
the worst pair; of gaps from 0.001 to 0.2 nats these two find a version one step old, and 4 bits, soonest. The mean over
a group was above 0.01 nats in 0.7 % of the groups of the worst, 1.8 % where a group had 7 tokens. What is off in a log
probability is off wherever the context is the same: of 1200 groups one had 7 of its 56 tokens beyond 0.15 nats; so
single tokens are judged where none was ever seen, the furthest being 0.49."""

SMALL = (
    Margin(gap=0.03, rate=5.5e-3),
    Margin(gap=0.1, rate=8e-4),
    Margin(gap=0.03, rate=0.1, measure=Measure.MEAN),
    Margin(gap=1.0, rate=1e-3, measure=Measure.LOGPROB),
)
"""The same of two policies of 51 M, 21,500 tokens in 48 groups of each pair: six times the gaps of the tiny ones. No
group's mean was above 0.026 nats, and no token beyond 0.16."""

LARGE = (
    Margin(gap=0.05, rate=0.03),
    Margin(gap=0.5, rate=3e-3),
    Margin(gap=0.1, rate=0.1, measure=Measure.MEAN),
    Margin(gap=1.5, rate=3e-3, measure=Measure.LOGPROB),
)
"""Not measured here, where no such model fits. Token-DiFR (arXiv 2511.20621) saw 98 % and more of the tokens of honest
8 B models in bfloat16 exactly, across GPUs and engines; three in a hundred may be far off, and three in a thousand very
far. Who makes tokens up, takes the likeliest, or computes with another model is beyond these by tens of percents; who
quantises with care may not be."""

SMALL_FLOAT32 = (
    Margin(gap=0.001, rate=5e-4),
    Margin(gap=0.03, rate=5e-5),
    Margin(gap=0.002, rate=0.02, measure=Measure.MEAN),
    Margin(gap=0.15, rate=1e-4, measure=Measure.LOGPROB),
)
"""Between float32 and float32 no token of 280,000 had a gap, and no log probability was 0.001 nats apart, on
processors, transformers and vLLM. The rates leave room for graphics cards that round products to ten bits on the way
(TF32), with an eighth of bfloat16's error, and twice that; this was not measured."""

LARGE_FLOAT32 = (
    Margin(gap=0.01, rate=4e-3),
    Margin(gap=0.1, rate=4e-4),
    Margin(gap=0.02, rate=0.1, measure=Measure.MEAN),
    Margin(gap=0.3, rate=4e-4, measure=Measure.LOGPROB),
)
"""Not measured: those of LARGE, by the eighth that ten bits have of seven bits' error."""


class Arithmetic(Enum):
    """In which numbers the engines of a swarm compute: whatever their owners choose, or float32, all of them."""

    ANY = "any"
    FLOAT32 = "float32"


def margins_of(weight_bytes: int, arithmetic: Arithmetic = Arithmetic.ANY) -> tuple[Margin, ...]:
    """Those for weights of so many bytes, in a swarm that computes so."""
    tiny, small, large = {
        Arithmetic.ANY: (TINY, SMALL, LARGE),
        Arithmetic.FLOAT32: (SMALL_FLOAT32, SMALL_FLOAT32, LARGE_FLOAT32),
    }[arithmetic]
    if weight_bytes <= TINY_BYTES:
        return tiny
    return small if weight_bytes <= SMALL_BYTES else large
