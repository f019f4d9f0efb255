"""Turn the losses of tokens into the loss of a batch.

The divisor decides whether long completions, or large groups, count more.

Invariants:

- Each aggregation is linear in the losses and divides by numbers of the whole batch, so the shares of microbatches add
  up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import Tensor

from learner.trainer_api.presets import AggregationName
from learner.training.objective.objective_inputs import Terms, Totals, mean_by_sequence

Aggregation = Callable[[Tensor, Terms, Totals], Tensor]


def per_token(loss: Tensor, terms: Terms, totals: Totals) -> Tensor:
    """Return the mean over all generated tokens of the batch: DAPO (arXiv 2503.14476, equation 8)."""
    del terms
    return loss.sum() / totals.tokens


def per_sequence(loss: Tensor, terms: Terms, totals: Totals) -> Tensor:
    """Return the mean over sequences of each one's mean over its tokens: GRPO (arXiv 2402.03300, equation 3)."""
    return mean_by_sequence(loss, terms).sum() / totals.sequences


def per_constant(loss: Tensor, terms: Terms, totals: Totals) -> Tensor:
    """Return the sum over tokens, divided by sequences x max_new_tokens: Dr. GRPO (arXiv 2503.20783, section 3.2).
    Long completions are not favoured when wrong.
    """
    del terms
    return loss.sum() / (totals.sequences * totals.max_new_tokens)


def per_group(loss: Tensor, terms: Terms, totals: Totals) -> Tensor:
    """Return the sum over tokens, divided by groups: DPO (arXiv 2305.18290, equation 7), whose groups are pairs."""
    del terms
    return loss.sum() / totals.groups


AGGREGATIONS: Mapping[AggregationName, Aggregation] = MappingProxyType(
    {"per_token": per_token, "per_sequence": per_sequence, "per_constant": per_constant, "per_group": per_group}
)
