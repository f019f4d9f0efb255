"""Compute the learning rate of each step: a linear rise, then a linear or cosine fall, or none.

The defaults are those of `SFTConfig` of TRL 1.16, which are transformers' own: 2e-5, falling linearly to 0, AdamW with
betas 0.9 and 0.999 without weight decay, gradients clipped at norm 1. Four differ. The rate rises over 3 % of the
steps, because AdamW's first steps are as long as the rate allows, in directions that a single batch chose. An adapter
learns at ten times the rate, as TRL's guide for LoRA recommends. A small model has rates of its own
(`node.learner_role.training.learning_rates`). And the last step has a rate above 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Decay = Literal["linear", "cosine", "none"]

RISE_SHARE = 0.03
BETAS = (0.9, 0.999)


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The rates of a warm-up. `rate` is the highest, which is reached after `rise` steps of `total`."""

    rate: float
    rise: int
    total: int
    decay: Decay

    def at(self, step: int) -> float:
        """Return the rate of the step that follows `step` others, as a fraction of `rate` in (0, 1]."""
        if step < self.rise:
            return (step + 1) / (self.rise + 1)
        done = (step - self.rise) / max(1, self.total - self.rise)
        match self.decay:
            case "none":
                return 1.0
            case "linear":
                return max(1 - done, _LEAST)
            case "cosine":
                return max((1 + math.cos(math.pi * min(done, 1.0))) / 2, _LEAST)


_LEAST = 1e-6
"""The least fraction: the trainer accepts no rate of 0, and with this a step changes next to nothing."""
