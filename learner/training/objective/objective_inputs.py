"""What an objective sees of a microbatch, and what it gives back.

What always holds: everything per token is flat, [N], in one order; only `logprobs` and `values` carry gradients; no
ratio is infinite, whatever a peer claims.
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
"""exp(20) is 5e8: beyond every ratio that means anything, and far from float32's 3e38, where one forged logprob would
make the loss of a whole batch infinite.
"""

TEACHER_LIMIT = 1.0
"""Nats that a teacher may be ahead of the policy, or behind it, about one token. A teacher that knows its task finds a
wrong token e^-10 times as likely, and few of those would decide a step. The balance stays where it is: a policy that is
its teacher has no lead anywhere. On string reversal (0.2 M, one seed, batches of 16 x 2) 0.8 came after 16,900 tokens
with 10 nats, 15,100 with 3 and 12,500 with 1. Where a teacher lies, one claim weighs as little.
"""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """One microbatch of N generated tokens in R whole sequences.

    `logprobs` [N] under the current weights, differentiable; `behaviour` [N] as the engine reported them; `lags` [N]
    int64, training steps from the version that made each token to this step's weights; `offline` [N] bool, whether it
    comes from a log; `advantages` [N]; `segments` [N] int64 in [0, R) names each token's sequence.

    Where the recipe asks for them: `proximal` [N] under the weights at the step's start, `reference` [N] under those
    that the run began with, `teacher` [N] under a teacher, and in `teacher_mean` [N] how far that was ahead of
    `behaviour` on average over the batch; the critic's `values` [N], differentiable, those at the step's start
    `old_values` [N], and the `returns` [N] that they should have told.
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
    """Size of the whole batch, sequences that teach nothing included: its sequences, groups and generated tokens, those
    of sequences that are not trained on left out; and the token budget that answers are given.
    """

    sequences: int
    groups: int
    tokens: int
    max_new_tokens: int


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """A loss per token [N]; where a bound acted on it [N] bool: clipped, truncated or masked; and what it was weighed
    with [N], detached: the gradient of its loss is that of -weight A log pi.
    """

    loss: Tensor
    clipped: Tensor
    weights: Tensor


def ratio_of(logprobs: Tensor, others: Tensor) -> Tensor:
    """Return the ratio of two probabilities, [N], its logarithm held within LOG_RATIO_LIMIT: always finite."""
    return torch.exp((logprobs - others).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def k3(log_ratios: Tensor) -> Tensor:
    """Return r - 1 - log r, [N], at least 0, of logarithms held like those of `ratio_of`: its mean over samples of the
    policy below the stroke estimates the KL from that to the one above (Schulman 2020).
    """
    held = log_ratios.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    # Not exp - 1: near a ratio of 1 nothing but rounding would be left of the difference.
    return torch.expm1(held) - held


def mean_by_sequence(values: Tensor, terms: Terms) -> Tensor:
    """Return the mean of `values` [N] over the tokens of each sequence, [R]."""
    counts = torch.bincount(terms.segments, minlength=terms.num_sequences)
    return _sum_by_sequence(values, terms) / counts.clamp(min=1)


def product_ratio(terms: Terms) -> Tensor:
    """Return pi / mu of each whole sequence, [R]: the product of the ratios of its tokens, always finite."""
    return torch.exp(_sum_by_sequence(_log_ratio(terms), terms).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def geometric_ratio(terms: Terms) -> Tensor:
    """Return the geometric mean of the ratios of each sequence's tokens, [R]: GSPO's s (arXiv 2507.18071, equation 7),
    which does not depend on how long the sequence is.
    """
    return torch.exp(mean_by_sequence(_log_ratio(terms), terms))


def _log_ratio(terms: Terms) -> Tensor:
    return (terms.logprobs - terms.behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _sum_by_sequence(values: Tensor, terms: Terms) -> Tensor:
    return values.new_zeros(terms.num_sequences).index_add(0, terms.segments, values)
