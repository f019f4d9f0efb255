"""Leave out whole sequences by their ratio, whatever the correction makes of their tokens.

Invariants:

- A mask is added to a correction and never replaces it.
- A sequence that is left out has weight 0 on all its tokens and still counts in every divisor.
- Terms other than the policy's own (KL to the reference, the critic's error) stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from torch import Tensor

from learner.trainer_api.presets import SequenceMask, SequenceRatioName
from learner.training.objective.objective_inputs import Corrected, Terms, geometric_ratio, product_ratio

SEQUENCE_RATIOS: Mapping[SequenceRatioName, Callable[[Terms], Tensor]] = MappingProxyType(
    {"product": product_ratio, "geometric": geometric_ratio}
)


def without_far_sequences(corrected: Corrected, terms: Terms, mask: SequenceMask) -> Corrected:
    """Return `corrected` (of tokens, [N]) without the sequences whose ratio is outside of the mask's bounds.

    Liu and Li, "When Speed Kills Stability", 2025; verl's `rollout_rs` with `seq_sum_k1` (product) and `seq_mean_k1`
    (geometric), SkyRL's `sequence_mask_metric`, prime-rl's `geo_mask_low` and `geo_mask_high`.
    """
    ratio = SEQUENCE_RATIOS[mask.ratio](terms).detach()
    outside = ((ratio < mask.low) | (ratio > mask.high))[terms.segments]
    return replace(
        corrected,
        loss=corrected.loss.masked_fill(outside, 0.0),
        clipped=corrected.clipped | outside,
        weights=corrected.weights.masked_fill(outside, 0.0),
    )
