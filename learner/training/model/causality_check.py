"""Test that a model's logits do not depend on tokens that they must not depend on, by changing these tokens.

A node generates token by token, in its own batches; audits and the trainer read whole sequences, in other batches. They
agree only if a logit is a function of the tokens before it in its own sequence. Masked language models look at later
tokens, and a layout of several sequences in one row may let them see each other. The effect may be smaller than the
difference in bfloat16 between two ways to the same logits. So nothing is compared across shapes. The same computation
runs twice, with other tokens at positions on which no compared logit may depend.

Invariants:

- Batches that are compared have the same shape, so a logit that does not depend on the change is the same number, bit
  for bit, unless experts group the tokens of a batch in a new way.
- `share` of equal logits is 0, also if both are infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from learner.training.batches.packing import Microbatch

Logits = Callable[[Microbatch], Tensor]
"""Returns all logits (N, V) of a batch's N predictors, in float32."""

CHANGES = (1, 5)
"""Numbers added to the token ids that are changed: two changes, because one alone may happen to change little."""


def share(logits: Tensor, expected: Tensor) -> float:
    """Return the largest difference as a fraction of the largest expected logit; NaN if one of them is no number."""
    apart = torch.where(logits == expected, 0.0, (logits - expected).abs())
    finite = expected[expected.isfinite()]
    return float(apart.max() / finite.abs().max().clamp(min=torch.finfo(torch.float32).tiny)) if len(finite) else 0.0


def measure_shift(logits: Logits, batch: Microbatch, changed: Tensor, watched: Tensor, vocab_size: int) -> float:
    """Return how far the logits of the predictors `watched` [W] move, as a fraction of the largest, when the tokens at
    the flattened positions `changed` [C] of `batch` are replaced.
    """
    expected = logits(batch)[watched]
    return max(share(logits(other)[watched], expected) for other in _variants(batch, changed, vocab_size))


def _variants(batch: Microbatch, changed: Tensor, vocab_size: int) -> Iterator[Microbatch]:
    for step in CHANGES:
        inputs = batch.inputs.flatten().clone()
        inputs[changed] = (inputs[changed] + step) % vocab_size
        yield replace(batch, inputs=inputs.reshape(batch.inputs.shape))
