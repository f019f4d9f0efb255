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

SMALL_BYTES = 400_000_000
"""Weights of a hundred million parameters in float32. Rounding adds up over layers and widths, so that what was
measured of small models says little of large ones."""

SMALL = (
    Margin(gap=0.001, rate=4e-3),
    Margin(gap=0.03, rate=1e-3),
    Margin(gap=0.15, rate=4e-3, measure=Measure.LOGPROB),
    Margin(gap=0.6, rate=2e-4, measure=Measure.LOGPROB),
)
"""Of 16,384 tokens each, bfloat16 on one side of a 3 M model with random weights gave 0.09 to 0.18 % of tokens any gap
at all, and none above 0.008 nats; float32 on both sides none. Of a policy of 0.2 M that has learned, whose logits are
larger, 22,330 tokens each: 0.07 to 0.10 % any gap, up to 0.02 % above 0.03 nats, one of them 0.13; log probabilities up
to 0.19 nats apart. vLLM against transformers in bfloat16: 0.03 nats at most at 3 M, 0.09 at 50 M; bfloat16 against
float32 0.41. The rates are twice and more of what was seen."""

LARGE = (
    Margin(gap=0.05, rate=0.03),
    Margin(gap=0.5, rate=3e-3),
    Margin(gap=0.4, rate=0.03, measure=Measure.LOGPROB),
    Margin(gap=1.5, rate=3e-3, measure=Measure.LOGPROB),
)
"""Not measured here, where no such model fits. Token-DiFR (arXiv 2511.20621) saw 98 % and more of the tokens of honest
8 B models in bfloat16 exactly, across GPUs and engines; three in a hundred may be far off, and three in a thousand very
far. Who makes tokens up, takes the likeliest, or computes with another model is beyond these by tens of percents; who
quantises with care may not be."""

SMALL_FLOAT32 = (
    Margin(gap=0.001, rate=5e-4),
    Margin(gap=0.03, rate=5e-5),
    Margin(gap=0.03, rate=5e-4, measure=Measure.LOGPROB),
    Margin(gap=0.15, rate=5e-5, measure=Measure.LOGPROB),
)
"""Between float32 and float32 no token of 38,000 had a gap, and no log probability was 0.001 nats apart, on processors,
transformers and vLLM. The rates leave room for graphics cards that round products to ten bits on the way (TF32), with
an eighth of bfloat16's error, and twice that; this was not measured."""

LARGE_FLOAT32 = (
    Margin(gap=0.01, rate=4e-3),
    Margin(gap=0.1, rate=4e-4),
    Margin(gap=0.05, rate=4e-3, measure=Measure.LOGPROB),
    Margin(gap=0.3, rate=4e-4, measure=Measure.LOGPROB),
)
"""Not measured: those of LARGE, by the eighth that ten bits have of seven bits' error."""


class Arithmetic(Enum):
    """In which numbers the engines of a swarm compute: whatever their owners choose, or float32, all of them."""

    ANY = "any"
    FLOAT32 = "float32"


def margins_of(weight_bytes: int, arithmetic: Arithmetic = Arithmetic.ANY) -> tuple[Margin, ...]:
    """Those for weights of so many bytes, in a swarm that computes so."""
    small, large = {
        Arithmetic.ANY: (SMALL, LARGE),
        Arithmetic.FLOAT32: (SMALL_FLOAT32, LARGE_FLOAT32),
    }[arithmetic]
    return small if weight_bytes <= SMALL_BYTES else large
