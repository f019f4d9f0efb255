"""Make AdamW for a policy's weights, and schedule its learning rate.

Invariants:

- Schedule and moments depend on the updates taken, never on a clock.
"""

from __future__ import annotations

import torch

from learner.trainer_api.requests import Hyperparameters
from learner.training.model.policy import Policy

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""The state that AdamW keeps for each tensor."""


def make_adamw(policy: Policy, hyperparameters: Hyperparameters, learning_rate: float) -> torch.optim.AdamW:
    """Return AdamW over all weights of `policy`, still without moments."""
    return torch.optim.AdamW(
        [parameter for _, parameter in policy.parameters],
        lr=learning_rate,
        betas=hyperparameters.betas,
        weight_decay=hyperparameters.weight_decay,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.AdamW, learning_rate: float) -> None:
    """Set the learning rate of the next updates."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def learning_rate_at(steps: int, hyperparameters: Hyperparameters) -> float:
    """Return the learning rate of the training step after `steps` steps: warm-up times decay."""
    h = hyperparameters
    risen = min(1.0, (steps + 1) / h.warmup_steps) if h.warmup_steps else 1.0
    left = max(h.decay_floor, 1 - steps / h.decay_steps) if h.decay_steps else 1.0
    return h.learning_rate * risen * left
