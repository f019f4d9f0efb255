"""AdamW over a policy's weights, and its rate by schedule.

What always holds: schedule and moments are functions of the updates taken, never of a clock.
"""

from __future__ import annotations

import torch

from learner.trainer_api.requests import Hyperparameters
from learner.training.model.policy import Policy

MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What AdamW remembers of each tensor."""


def make_adamw(policy: Policy, hyperparameters: Hyperparameters, learning_rate: float) -> torch.optim.AdamW:
    """AdamW over all weights of `policy`, without moments yet."""
    return torch.optim.AdamW(
        [parameter for _, parameter in policy.parameters],
        lr=learning_rate,
        betas=hyperparameters.betas,
        weight_decay=hyperparameters.weight_decay,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.AdamW, learning_rate: float) -> None:
    """Put a rate in force for the updates to come."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate


def learning_rate_at(steps: int, hyperparameters: Hyperparameters) -> float:
    """Return the learning rate of the training step that follows `steps` others: warm-up times decay."""
    h = hyperparameters
    risen = min(1.0, (steps + 1) / h.warmup_steps) if h.warmup_steps else 1.0
    left = max(h.decay_floor, 1 - steps / h.decay_steps) if h.decay_steps else 1.0
    return h.learning_rate * risen * left
