"""Importance corrections: weigh tokens that another policy made.

mu is the behaviour policy itself, as the engine reported it, so ratios correct lag and engine mismatch at once.

Invariants:

- A correction turns log probabilities and advantages into a loss per token. It reports where a bound acted, and the
  weight of each token after the bound.
- With pi = mu (no lag, no mismatch between engine and trainer) the gradient of each correction is that of -A log pi.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from learner.trainer_api.presets import CorrectionName
from learner.training.objective.objective_inputs import (
    Bounds,
    Corrected,
    Terms,
    geometric_ratio,
    product_ratio,
    ratio_of,
)

Correction = Callable[[Terms, Bounds], Corrected]

NOISE = 0.1
"""Smallest change of a weight that counts as a bound acting. Half of all tokens without lag exceed a cap of 1, because
engines round, in bf16 by some hundredths."""


def uncorrected(terms: Terms, bounds: Bounds) -> Corrected:
    """Return -A log pi: REINFORCE (Williams 1992), as if the tokens came from the current weights."""
    del bounds
    nowhere = torch.zeros_like(terms.segments, dtype=torch.bool)
    weights = torch.ones_like(terms.behaviour)
    return Corrected(loss=-terms.advantages * terms.logprobs, clipped=nowhere, weights=weights)


def clipped_ratio(terms: Terms, bounds: Bounds) -> Corrected:
    """Return -min(r A, clip(r) A) with r = pi / mu: PPO (arXiv 1707.06347, equation 7). The ends of the range may
    differ from 1 by different amounts, as in DAPO (arXiv 2503.14476, equation 10). Where A < 0 the loss is at most
    C |A|: dual clip (arXiv 1912.09729, equation 5). Without it, a peer that claims a small mu would decide a step with
    its bad completions.
    """
    return _surrogate(ratio_of(terms.logprobs, terms.behaviour), terms.advantages, bounds, bounds.weight_cap)


def sequence_ratio(terms: Terms, bounds: Bounds) -> Corrected:
    """Return -min(s A, clip(s) A) for each token, with s = exp(mean over the sequence of log pi / mu): GSPO (arXiv
    2507.18071, equations 5 and 7). A sequence is clipped as a whole; where A < 0 as in `clipped_ratio`.
    """
    ratio = geometric_ratio(terms)[terms.segments]
    return _surrogate(ratio, terms.advantages, bounds, bounds.weight_cap)


def cispo(terms: Terms, bounds: Bounds) -> Corrected:
    """Return -sg(clip(r)) A log pi: CISPO (MiniMax-M1, arXiv 2506.13585, equations 4 and 5). No token loses its
    gradient.
    """
    ratio = ratio_of(terms.logprobs.detach(), terms.behaviour)
    return _weighted(terms, ratio, ratio.clamp(1 - bounds.clip_low, 1 + bounds.clip_high))


def truncated_weight(terms: Terms, bounds: Bounds) -> Corrected:
    """Return -sg(min(r, C)) A log pi: truncated importance sampling (Ionides 2008, equation 2; TIS). No token loses its
    gradient.
    """
    ratio = ratio_of(terms.logprobs.detach(), terms.behaviour)
    return _weighted(terms, ratio, ratio.clamp(max=bounds.weight_cap))


def truncated_sequence(terms: Terms, bounds: Bounds) -> Corrected:
    """Return -sg(min(w, C)) A log pi for each token, with w = the product of the sequence's pi / mu: truncated
    importance sampling of whole sequences (Ionides 2008, equation 2). It lacks the bias of token ratios (Liu and Li,
    "When Speed Kills Stability", 2025). TRL's `sequence_truncate`, verl's `rollout_is = "sequence"`.
    """
    ratio = product_ratio(terms).detach()[terms.segments]
    return _weighted(terms, ratio, ratio.clamp(max=bounds.weight_cap))


def masked_sequence(terms: Terms, bounds: Bounds) -> Corrected:
    """Return -sg(w) A log pi where 1 - clip_low <= w <= 1 + clip_high, 0 elsewhere, with w = the product of the
    sequence's pi / mu: masked importance sampling (MIS; Liu and Li, "When Speed Kills Stability", 2025). A sequence
    that is too far from the policy that made it is left out as a whole. TRL's `sequence_mask`.
    """
    return _masked(terms, product_ratio(terms).detach()[terms.segments], bounds)


def masked_weight(terms: Terms, bounds: Bounds) -> Corrected:
    """Return -sg(r) A log pi where 1 - clip_low <= r <= 1 + clip_high, 0 elsewhere: IcePop (Ring-1T, arXiv
    2510.18855). A token that is too far from the policy that made it is left out, not limited.
    """
    return _masked(terms, ratio_of(terms.logprobs.detach(), terms.behaviour), bounds)


def tapered_weight(terms: Terms, bounds: Bounds) -> Corrected:
    """Return -sg(w) A log pi, with w = min(r, C) where A < 0 and w = clip(r) where A > 0.

    This is TOPR (arXiv 2503.14286, section 2), by token instead of by sequence, and with some of r left where A > 0.

    Tokens that the policy has moved away from push it no further if they were bad, but pull it back if they were good.
    A weight that vanished with r on both sides would leave nothing to end a slide. docs/explain/objectives.md shows the
    effect. No bound acts on a bad token whose weight vanishes with r.
    """
    ratio = ratio_of(terms.logprobs.detach(), terms.behaviour)
    good = ratio.clamp(1 - bounds.clip_low, 1 + bounds.clip_high)
    return _weighted(terms, ratio, torch.where(terms.advantages > 0, good, ratio.clamp(max=bounds.weight_cap)))


def decoupled(terms: Terms, bounds: Bounds) -> Corrected:
    """Return -sg(min(pi_prox / mu, C)) min(r A, clip(r) A) with r = pi / pi_prox: the decoupled objective.

    It is from Hilton et al. (arXiv 2110.00641, section 3), as AReaL uses it (arXiv 2505.24298, section 5.2). pi_prox
    are the weights at the step's start.

    The trust region lies around fresh weights, however old mu is; the weight before it corrects the rest. Without
    `terms.proximal` the current weights are those at the step's start.
    """
    proximal = terms.logprobs.detach() if terms.proximal is None else terms.proximal
    share = ratio_of(proximal, terms.behaviour)
    weight = share.clamp(max=bounds.weight_cap)
    inner = _surrogate(ratio_of(terms.logprobs, proximal), terms.advantages, bounds, math.inf)
    clipped = inner.clipped | _moved(share, weight)
    return Corrected(loss=weight * inner.loss, clipped=clipped, weights=weight * inner.weights)


def _weighted(terms: Terms, ratio: Tensor, weight: Tensor) -> Corrected:
    """Return -sg(w) A log pi, for a weight w that bounds made of the ratio."""
    return Corrected(loss=-weight * terms.advantages * terms.logprobs, clipped=_moved(ratio, weight), weights=weight)


def _masked(terms: Terms, ratio: Tensor, bounds: Bounds) -> Corrected:
    """Return -sg(r) A log pi within the bounds, 0 elsewhere."""
    outside = (ratio < 1 - bounds.clip_low) | (ratio > 1 + bounds.clip_high)
    weight = ratio.masked_fill(outside, 0.0)
    return Corrected(loss=-weight * terms.advantages * terms.logprobs, clipped=outside, weights=weight)


def _moved(ratio: Tensor, weight: Tensor) -> Tensor:
    return (weight - ratio).abs() > NOISE


def _surrogate(ratio: Tensor, advantages: Tensor, bounds: Bounds, cap: float) -> Corrected:
    """Return -min(r A, clip(r) A), pessimistic on either side, with r at most `cap` where A < 0."""
    low, high = 1 - bounds.clip_low, 1 + bounds.clip_high
    held = torch.where(advantages < 0, ratio.clamp(max=cap), ratio)
    loss = -torch.minimum(held * advantages, ratio.clamp(low, high) * advantages)
    clipped = ((advantages > 0) & (ratio > high)) | ((advantages < 0) & ((ratio < low) | (ratio > cap)))
    return Corrected(loss=loss, clipped=clipped, weights=ratio.detach().masked_fill(clipped, 0.0))


CORRECTIONS: Mapping[CorrectionName, Correction] = MappingProxyType(
    {
        "uncorrected": uncorrected,
        "clipped_ratio": clipped_ratio,
        "sequence_ratio": sequence_ratio,
        "cispo": cispo,
        "truncated_weight": truncated_weight,
        "masked_weight": masked_weight,
        "tapered_weight": tapered_weight,
        "truncated_sequence": truncated_sequence,
        "masked_sequence": masked_sequence,
        "decoupled": decoupled,
    }
)
