"""The loss: aggregation x importance correction x advantage term, each a small named function with its paper (RLAX's
form).

What always holds: an objective sees the completion tokens of one microbatch flat, [N], without padding; losses of the
microbatches of one batch add up to the loss of the batch, because every aggregation divides by `Totals`, which
counts the whole batch and not the microbatch. A correction turns current and behaviour logprobs into a loss per
token; where it lets no gradient through it says so (`muted`), which is what the clip share counts. Adding an
objective is adding a function and a line to a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""exp(20) is 5e8: beyond every ratio that means anything, and far from float32's 3e38, where one forged logprob would
make the loss of a whole batch infinite.
"""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What an objective sees of one microbatch of N completion tokens in R sequences.

    `logprobs` [N] under the current weights, differentiable; `behaviour` [N] as the engine reported them; `lags` [N]
    int64, training steps from the version that made each token to this step's weights; `advantages` [N], per token so
    that a critic fits; `segments` [N] int64 in [0, R) names each token's sequence.
    """

    logprobs: Tensor
    behaviour: Tensor
    lags: Tensor
    advantages: Tensor
    segments: Tensor
    num_sequences: int


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Size of the whole batch, dropped sequences included: its sequences, its completion tokens, the token budget of
    one.
    """

    sequences: int
    tokens: int
    max_new_tokens: int


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """Where ratios end: [1 - clip_low, 1 + clip_high] for clipping, `weight_cap` for truncated weights."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    weight_cap: float = 2.0


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """A loss per token [N], and whether the correction stopped that token's gradient [N] bool."""

    loss: Tensor
    muted: Tensor


Correction = Callable[[Terms, Bounds], Corrected]
Aggregation = Callable[[Tensor, Terms, Totals], Tensor]


def uncorrected(terms: Terms, bounds: Bounds) -> Corrected:
    """-A log pi: the plain policy gradient, as if the tokens came from the current weights."""
    del bounds
    return Corrected(
        loss=-terms.advantages * terms.logprobs, muted=torch.zeros_like(terms.advantages, dtype=torch.bool)
    )


def ratio_of(logprobs: Tensor, behaviour: Tensor) -> Tensor:
    """Return pi / mu, [N], with its logarithm held within LOG_RATIO_LIMIT: finite whatever a peer claims mu was."""
    return torch.exp((logprobs - behaviour).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def clipped_ratio(terms: Terms, bounds: Bounds) -> Corrected:
    """-min(r A, clip(r) A) with r = pi / mu: PPO (arXiv 1707.06347), the upper end further out as in DAPO (arXiv
    2503.14476).

    mu is the behaviour policy itself, so the ratio corrects lag and engine mismatch at once.
    """
    ratio = ratio_of(terms.logprobs, terms.behaviour)
    low, high = 1 - bounds.clip_low, 1 + bounds.clip_high
    loss = -torch.minimum(ratio * terms.advantages, ratio.clamp(low, high) * terms.advantages)
    muted = ((terms.advantages > 0) & (ratio > high)) | ((terms.advantages < 0) & (ratio < low))
    return Corrected(loss=loss, muted=muted)


def truncated_weight(terms: Terms, bounds: Bounds) -> Corrected:
    """-sg(min(r, C)) A log pi: truncated importance sampling (Ionides 2008; TIS). No token is muted, only weighed
    less.
    """
    weight = ratio_of(terms.logprobs.detach(), terms.behaviour).clamp(max=bounds.weight_cap)
    return Corrected(
        loss=-weight * terms.advantages * terms.logprobs,
        muted=torch.zeros_like(terms.advantages, dtype=torch.bool),
    )


def per_constant(loss: Tensor, terms: Terms, totals: Totals) -> Tensor:
    """Sum over tokens, divided by B * max_new_tokens: Dr. GRPO (arXiv 2503.20783). Long answers are not favoured
    when wrong.
    """
    del terms
    return loss.sum() / (totals.sequences * totals.max_new_tokens)


def per_token(loss: Tensor, terms: Terms, totals: Totals) -> Tensor:
    """Mean over all completion tokens of the batch: DAPO (arXiv 2503.14476)."""
    del terms
    return loss.sum() / totals.tokens


def per_sequence(loss: Tensor, terms: Terms, totals: Totals) -> Tensor:
    """Mean over sequences of each one's mean over its tokens: the first GRPO (arXiv 2402.03300)."""
    counts = torch.bincount(terms.segments, minlength=terms.num_sequences)
    sums = loss.new_zeros(terms.num_sequences).index_add(0, terms.segments, loss)
    return (sums / counts.clamp(min=1)).sum() / totals.sequences


CORRECTIONS: Mapping[str, Correction] = MappingProxyType(
    {"uncorrected": uncorrected, "clipped_ratio": clipped_ratio, "truncated_weight": truncated_weight}
)
AGGREGATIONS: Mapping[str, Aggregation] = MappingProxyType(
    {"per_constant": per_constant, "per_token": per_token, "per_sequence": per_sequence}
)


@dataclass(frozen=True, kw_only=True)
class Objective:
    """One correction with one aggregation. The advantage term comes with the batch (`learner.advantage`)."""

    correction: Correction
    aggregation: Aggregation

    def __call__(self, terms: Terms, bounds: Bounds, totals: Totals) -> Corrected:
        """Return this microbatch's share of the batch loss (a scalar in `loss`) and which tokens were muted [N]."""
        corrected = self.correction(terms, bounds)
        return Corrected(loss=self.aggregation(corrected.loss, terms, totals), muted=corrected.muted)


OBJECTIVES: Mapping[str, Objective] = MappingProxyType(
    {
        "grpo": Objective(correction=clipped_ratio, aggregation=per_constant),
        "tis": Objective(correction=truncated_weight, aggregation=per_constant),
        "reinforce": Objective(correction=uncorrected, aggregation=per_constant),
    }
)
"""Objectives by the name a configuration uses. "grpo" divides by a constant: the form that learns best on a short
budget.
"""


@dataclass(kw_only=True)
class MismatchSums:
    """Running sums over the tokens of one batch, of how far the current policy is from the one that generated.

    With r = pi / mu over tokens drawn from mu, `mean(r - 1 - log r)` estimates KL(mu || pi) without bias and with
    every term >= 0 (Schulman's k3). `log_ratio_max` is the largest |log r|, which no limit holds: with S = 0 it is the
    noise of the arithmetic and of the weights' rounding, and nothing else.
    """

    tokens: int = 0
    muted: float = 0.0
    ratio: float = 0.0
    ratio_max: float = 0.0
    log_ratio_max: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0

    @torch.no_grad()
    def add(self, terms: Terms, muted: Tensor, entropy: Tensor) -> None:
        """Count one microbatch; `muted` [N], `entropy` [N] of the policy in nats."""
        log_ratio = terms.logprobs.detach() - terms.behaviour
        ratio = ratio_of(terms.logprobs.detach(), terms.behaviour)
        sums = torch.stack(
            [
                muted.float().sum(),
                ratio.sum(),
                (ratio - 1 - log_ratio).sum(),
                entropy.sum(),
                ratio.max(),
                log_ratio.abs().max(),
            ]
        )
        muted_sum, ratio_sum, kl_sum, entropy_sum, ratio_max, log_ratio_max = sums.tolist()
        self.tokens += len(ratio)
        self.muted += muted_sum
        self.ratio += ratio_sum
        self.kl += kl_sum
        self.entropy += entropy_sum
        self.ratio_max = max(self.ratio_max, ratio_max)
        self.log_ratio_max = max(self.log_ratio_max, log_ratio_max)

    def metrics(self) -> dict[str, float]:
        """Means over the tokens counted; all zero when there were none."""
        count = max(self.tokens, 1)
        return {
            "clip_share": self.muted / count,
            "mean_ratio": self.ratio / count,
            "max_ratio": self.ratio_max,
            "max_log_ratio": self.log_ratio_max,
            "mismatch_kl": self.kl / count,
            "entropy": self.entropy / count,
        }
