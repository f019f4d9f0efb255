"""AdamW over a policy's weights: its rate by schedule, and a way back when one of several updates fails.

What always holds: schedule and moments are functions of the updates taken, never of a clock; after `all_or_nothing`
either every update counts or none does, to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from learner.policy import Policy
from learner.requests import Hyperparameters

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


@contextmanager
def all_or_nothing(optimizer: torch.optim.AdamW, updates: int) -> Iterator[None]:
    """Take `updates` inside; when one of them raises, weights and moments are again as they were before the first.

    A single update is judged before it is applied and needs no way back. More need a copy, 12 bytes a parameter while
    they last: what an update did cannot be computed backwards to the bit.
    """
    if updates < 2:
        yield
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    known = [parameter for parameter in parameters if parameter in optimizer.state]
    moments = [optimizer.state[parameter][moment] for parameter in known for moment in MOMENTS]
    before = [(tensor, tensor.detach().clone()) for tensor in (*parameters, *moments)]
    try:
        yield
    except BaseException:
        with torch.no_grad():
            for tensor, was in before:
                tensor.copy_(was)
        for parameter in set(optimizer.state) - set(known):
            del optimizer.state[parameter]
        raise
