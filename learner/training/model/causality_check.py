"""Try what a model's logits depend on, by changing what they must not depend on.

A node generates token by token, in batches of its own; audits and the trainer read whole sequences, in other batches.
They agree only if a logit is a function of the tokens before it in its own sequence. Masked language models look at
later tokens, and a layout of sequences in one row may let them see each other, by less than two ways to the same logits
differ in bfloat16. So nothing is compared across shapes: the same computation runs twice, with other tokens where no
logit that is looked at may depend on them.

Invariants:
- batches that are compared have the same shape, so what does not depend on the change is the same number, bit for bit,
  unless experts group the tokens of a batch anew;
- `share` of equal logits is 0, also where both are infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from learner.training.batches.packing import Microbatch

Logits = Callable[[Microbatch], Tensor]
"""All logits (N, V) of a batch's N predictors, in float32."""

CHANGES = (1, 5)
"""What is added to token ids that are changed: two changes, since the first may happen to change little."""


def share(logits: Tensor, expected: Tensor) -> float:
    """Return the largest difference as a share of the largest expected logit; NaN where one of them is no number."""
    apart = torch.where(logits == expected, 0.0, (logits - expected).abs())
    finite = expected[expected.isfinite()]
    return float(apart.max() / finite.abs().max().clamp(min=torch.finfo(torch.float32).tiny)) if len(finite) else 0.0


def measure_shift(logits: Logits, batch: Microbatch, changed: Tensor, watched: Tensor, vocab_size: int) -> float:
    """Return how far the logits of the predictors `watched` [W] move, as a share of the largest, when the tokens at the
    flattened positions `changed` [C] of `batch` become others.
    """
    expected = logits(batch)[watched]
    return max(share(logits(other)[watched], expected) for other in _variants(batch, changed, vocab_size))


def _variants(batch: Microbatch, changed: Tensor, vocab_size: int) -> Iterator[Microbatch]:
    for step in CHANGES:
        inputs = batch.inputs.flatten().clone()
        inputs[changed] = (inputs[changed] + step) % vocab_size
        yield replace(batch, inputs=inputs.reshape(batch.inputs.shape))
