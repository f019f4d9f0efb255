"""Define what an objective gets of a microbatch, and what it returns.

Invariants:

- Everything per token is flat, [N], in one order.
- Only `logprobs` and `values` carry gradients.
- No ratio is infinite, whatever a peer claims.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from learner.trainer_api.presets import Bounds

__all__ = [
    "LOG_RATIO_LIMIT",
    "TEACHER_LIMIT",
    "Bounds",
    "Corrected",
    "Terms",
    "Totals",
    "geometric_ratio",
    "k3",
    "mean_by_sequence",
    "product_ratio",
    "ratio_of",
]

LOG_RATIO_LIMIT = 20.0
"""Limit of log ratios in nats. exp(20) is 5e8: beyond every meaningful ratio, and far from float32's 3e38. Without it
one forged log probability would make the loss of a whole batch infinite.
"""

TEACHER_LIMIT = 1.0
"""Largest lead of a teacher over the policy in one token, in nats, on either side. A teacher that knows its task gives
a wrong token e^-10 times the probability, and a few such tokens would decide a step. The balance does not move: a
policy that equals its teacher has no lead anywhere. On string reversal (0.2 M, one seed, batches of 16 x 2) 0.8 was
reached after 16,900 tokens with 10 nats, 15,100 with 3 and 12,500 with 1. A false claim of a teacher weighs as little.
"""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """One microbatch of N generated tokens in R whole sequences.

    - `logprobs` [N] are under the current weights, differentiable; `behaviour` [N] as the engine reported them.
    - `lags` [N] int64 are training steps from the version that made each token to this step's weights.
    - `offline` [N] bool says whether the token comes from a log.
    - `advantages` [N]; `segments` [N] int64 in [0, R) is each token's sequence.

    If the recipe asks for them:

    - Log probabilities `proximal` [N] under the weights at the step's start, `reference` [N] under the weights that
      the run began with, and `teacher` [N] under a teacher.
    - `teacher_mean` [N] is the mean lead of the teacher over `behaviour` in the batch.
    - The critic's `values` [N], differentiable; its `old_values` [N] at the step's start; the `returns` [N] that it
      should have predicted.
    """

    logprobs: Tensor
    behaviour: Tensor
    lags: Tensor
    offline: Tensor
    advantages: Tensor
    segments: Tensor
    num_sequences: int
    proximal: Tensor | None = None
    reference: Tensor | None = None
    teacher: Tensor | None = None
    teacher_mean: Tensor | None = None
    values: Tensor | None = None
    old_values: Tensor | None = None
    returns: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Size of the whole batch: its sequences and groups, those that teach nothing included; the generated tokens of the
    sequences that are trained on; and the token budget of a completion.
    """

    sequences: int
    groups: int
    tokens: int
    max_new_tokens: int


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """A loss per token [N]; whether a bound acted on it (clipped, truncated or masked) [N] bool; and its weight [N],
    detached: the gradient of its loss is that of -weight A log pi.
    """

    loss: Tensor
    clipped: Tensor
    weights: Tensor


def ratio_of(logprobs: Tensor, others: Tensor) -> Tensor:
    """Return the ratio of two probabilities, [N], its logarithm limited to LOG_RATIO_LIMIT, so it is always finite."""
    return torch.exp((logprobs - others).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def k3(log_ratios: Tensor) -> Tensor:
    """Return r - 1 - log r, [N], at least 0, for log ratios log r, limited as in `ratio_of`. Its mean over samples of
    the policy in the denominator estimates the KL from that policy to the one in the numerator (Schulman 2020).
    """
    held = log_ratios.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    # Not exp - 1: near a ratio of 1 only rounding errors would be left of the difference.
    return torch.expm1(held) - held


def mean_by_sequence(values: Tensor, terms: Terms) -> Tensor:
    """Return the mean of `values` [N] over the tokens of each sequence, [R]."""
    counts = torch.bincount(terms.segments, minlength=terms.num_sequences)
    return _sum_by_sequence(values, terms) / counts.clamp(min=1)


def product_ratio(terms: Terms) -> Tensor:
    """Return pi / mu of each whole sequence, [R]: the product of the ratios of its tokens, always finite."""
    return torch.exp(_sum_by_sequence(_log_ratio(terms), terms).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def geometric_ratio(terms: Terms) -> Tensor:
    """Return the geometric mean of the ratios of each sequence's tokens, [R]: GSPO's s (arXiv 2507.18071, equation 7).
    It does not depend on the length of the sequence.
    """
    return torch.exp(mean_by_sequence(_log_ratio(terms), terms))


def _log_ratio(terms: Terms) -> Tensor:
    return (terms.logprobs - terms.behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _sum_by_sequence(values: Tensor, terms: Terms) -> Tensor:
    return values.new_zeros(terms.num_sequences).index_add(0, terms.segments, values)
