"""A recipe as a loss: one correction, one aggregation, and what is added to a token's loss beside them.

What always holds: what is added (KL to the reference, the critic's error) goes through the same aggregation as the
policy's own term, so one coefficient means the same for every length of batch.
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
    """One correction with one aggregation, within bounds; with a `mask`, without the sequences that it leaves out. The
    advantage term comes with the batch, and `teacher` times what a teacher says is added to it."""

    correction: Correction
    aggregation: Aggregation
    bounds: Bounds
    kl: float = 0.0
    value_coefficient: float = 0.0
    value_clip: float = 0.0
    mask: SequenceMask | None = None
    teacher: float = 0.0

    def __call__(self, terms: Terms, totals: Totals) -> Corrected:
        """Return this microbatch's share of the batch loss (a scalar in `loss`), and the rest as corrected, [N]."""
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
    """The loss that a recipe names."""
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
    """How much more the teacher likes each token than it likes the batch's on average, [N], detached: `teacher_lead`
    less its mean. The mean of the lead over the policy's own samples is minus the reverse KL to the teacher,
    KL(pi || pi_T), at this token alone (discount 0).

    GKD (arXiv 2306.13649, section 3.2) and MiniLLM (arXiv 2306.08543, equation 5) minimise the same over sampled
    sequences; per token, without what later tokens bring and less the mean, as Thinking Machines' "On-Policy
    Distillation" (2025). Without the mean nearly all a batch says is what not to say: most leads are far below 0 or
    just above. Raises ValueError without `terms.teacher`.
    """
    lead = teacher_lead(terms)
    return lead if terms.teacher_mean is None else lead - terms.teacher_mean


def teacher_lead(terms: Terms) -> Tensor:
    """log pi_T - log pi of each token, [N], detached and held within TEACHER_LIMIT. pi are the weights in training, not
    what a peer claims, and cost nothing: the update computes them anyway. Raises ValueError without `terms.teacher`.
    """
    if terms.teacher is None:
        raise ValueError("what a teacher says needs logprobs under the teacher")
    return (terms.teacher - terms.logprobs.detach()).clamp(-TEACHER_LIMIT, TEACHER_LIMIT)


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
