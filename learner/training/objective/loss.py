"""A recipe as a loss: one correction, one aggregation, and what is added to a token's loss beside them.

What always holds: what is added (KL to the reference, the critic's error) goes through the same aggregation as the
policy's own term, so one coefficient means the same for every length of batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from learner.trainer_api.presets import Recipe
from learner.training.objective.aggregations import AGGREGATIONS, Aggregation
from learner.training.objective.corrections import CORRECTIONS, Correction
from learner.training.objective.objective_inputs import Bounds, Corrected, Terms, Totals, k3


@dataclass(frozen=True, kw_only=True)
class Objective:
    """One correction with one aggregation, within bounds. The advantage term comes with the batch."""

    correction: Correction
    aggregation: Aggregation
    bounds: Bounds
    kl: float = 0.0
    value_coefficient: float = 0.0
    value_clip: float = 0.0

    def __call__(self, terms: Terms, totals: Totals) -> Corrected:
        """Return this microbatch's share of the batch loss (a scalar in `loss`), and the rest as corrected, [N]."""
        corrected = self.correction(terms, self.bounds)
        loss = corrected.loss
        if self.kl:
            loss = loss + self.kl * reference_kl(terms)
        if terms.values is not None:
            loss = loss + self.value_coefficient * value_loss(terms, self.value_clip)
        return replace(corrected, loss=self.aggregation(loss, terms, totals))


def objective_of(recipe: Recipe) -> Objective:
    """The loss that a recipe names."""
    return Objective(
        correction=CORRECTIONS[recipe.correction],
        aggregation=AGGREGATIONS[recipe.aggregation],
        bounds=recipe.bounds,
        kl=recipe.kl,
        value_coefficient=recipe.value_coefficient,
        value_clip=recipe.value_clip,
    )


def reference_kl(terms: Terms) -> Tensor:
    """k3 = pi_ref / pi - 1 - log(pi_ref / pi), [N]: an estimate of KL(pi || pi_ref) that is never negative (Schulman
    2020; GRPO, arXiv 2402.03300, equation 4). Raises ValueError without `terms.reference`.
    """
    if terms.reference is None:
        raise ValueError("a KL to the reference needs logprobs under the reference")
    return k3(terms.reference - terms.logprobs)


def value_loss(terms: Terms, clip: float) -> Tensor:
    """max((V - R)^2, (V_old + clip(V - V_old) - R)^2) / 2, [N]: the critic's error, held as PPO's own code holds it
    (arXiv 2005.12729, section 2): nothing is gained by leaving the old value by more than `clip`.

    Raises ValueError without values, old values and returns.
    """
    if terms.values is None or terms.old_values is None or terms.returns is None:
        raise ValueError("the critic's error needs values, old values and returns")
    held = terms.old_values + (terms.values - terms.old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((terms.values - terms.returns) ** 2, (held - terms.returns) ** 2)
