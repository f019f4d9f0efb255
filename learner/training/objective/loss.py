"""Make a loss of a recipe: one correction, one aggregation, and the terms that are added to a token's loss.

Invariants:

- Added terms (KL to the reference, the critic's error) go through the same aggregation as the policy's own term, so a
  coefficient means the same for every length of batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from learner.trainer_api.presets import Recipe, SequenceMask
from learner.training.objective.aggregations import AGGREGATIONS, Aggregation
from learner.training.objective.corrections import CORRECTIONS, Correction
from learner.training.objective.objective_inputs import TEACHER_LIMIT, Bounds, Corrected, Terms, Totals, k3
from learner.training.objective.sequence_masks import without_far_sequences


@dataclass(frozen=True, kw_only=True)
class Objective:
    """One correction with one aggregation, within bounds. A `mask` leaves out sequences. The advantage comes with the
    batch; `teacher` times a teacher's term is added to it."""

    correction: Correction
    aggregation: Aggregation
    bounds: Bounds
    kl: float = 0.0
    value_coefficient: float = 0.0
    value_clip: float = 0.0
    mask: SequenceMask | None = None
    teacher: float = 0.0

    def __call__(self, terms: Terms, totals: Totals) -> Corrected:
        """Return this microbatch's share of the batch loss as a scalar in `loss`; other fields are per token, [N]."""
        if self.teacher:
            taught = terms.advantages + self.teacher * teacher_reward(terms)
            terms = replace(terms, advantages=taught)
        corrected = self.correction(terms, self.bounds)
        if self.mask is not None:
            corrected = without_far_sequences(corrected, terms, self.mask)
        loss = corrected.loss
        if self.kl:
            loss = loss + self.kl * reference_kl(terms)
        if terms.values is not None:
            loss = loss + self.value_coefficient * value_loss(terms, self.value_clip)
        return replace(corrected, loss=self.aggregation(loss, terms, totals))


def objective_of(recipe: Recipe) -> Objective:
    """Return the loss that a recipe names."""
    return Objective(
        correction=CORRECTIONS[recipe.correction],
        aggregation=AGGREGATIONS[recipe.aggregation],
        bounds=recipe.bounds,
        kl=recipe.kl,
        value_coefficient=recipe.value_coefficient,
        value_clip=recipe.value_clip,
        mask=recipe.mask,
        teacher=recipe.teacher,
    )


def teacher_reward(terms: Terms) -> Tensor:
    """Return `teacher_lead` less its mean over the batch, [N], detached. Over the policy's own samples the mean of the
    lead is minus the reverse KL to the teacher, KL(pi || pi_T), at this token alone (discount 0).

    GKD (arXiv 2306.13649, section 3.2) and MiniLLM (arXiv 2306.08543, equation 5) minimise the same over sampled
    sequences. As in Thinking Machines' "On-Policy Distillation" (2025) it is per token, without what later tokens
    bring, and less the mean. Most leads are far below 0 or just above, so without subtracting the mean a batch would
    say almost only what to avoid. Raises ValueError without `terms.teacher`.
    """
    lead = teacher_lead(terms)
    return lead if terms.teacher_mean is None else lead - terms.teacher_mean


def teacher_lead(terms: Terms) -> Tensor:
    """Return log pi_T - log pi of each token, [N], detached and limited to TEACHER_LIMIT. pi is the policy in
    training, not a peer's claim, and costs nothing, because the update computes it anyway. Raises ValueError without
    `terms.teacher`.
    """
    if terms.teacher is None:
        raise ValueError("the teacher's term needs log probabilities under the teacher")
    return (terms.teacher - terms.logprobs.detach()).clamp(-TEACHER_LIMIT, TEACHER_LIMIT)


def reference_kl(terms: Terms) -> Tensor:
    """Return k3 = pi_ref / pi - 1 - log(pi_ref / pi), [N]: an estimate of KL(pi || pi_ref) that is never negative
    (Schulman 2020; GRPO, arXiv 2402.03300, equation 4). Raises ValueError without `terms.reference`.
    """
    if terms.reference is None:
        raise ValueError("a KL to the reference needs log probabilities under the reference")
    return k3(terms.reference - terms.logprobs)


def value_loss(terms: Terms, clip: float) -> Tensor:
    """Return max((V - R)^2, (V_old + clip(V - V_old) - R)^2) / 2, [N]: the critic's error, limited as in PPO's own code
    (arXiv 2005.12729, section 2). Nothing is gained by moving away from the old value by more than `clip`.

    Raises ValueError without values, old values and returns.
    """
    if terms.values is None or terms.old_values is None or terms.returns is None:
        raise ValueError("the critic's error needs values, old values and returns")
    held = terms.old_values + (terms.values - terms.old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((terms.values - terms.returns) ** 2, (held - terms.returns) ** 2)
