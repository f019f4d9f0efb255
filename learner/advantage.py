"""How much better than its siblings a completion was: rewards of one group in, one advantage per completion out.

What always holds: the advantages of a group depend on that group's rewards alone, so a group may be judged as soon
as it is complete, and a group whose rewards are all equal gets exactly zero everywhere (it teaches nothing and may
be dropped before the forward pass). Pure numpy: the node computes advantages, the trainer process only receives
them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

Rewards = NDArray[np.float64]
"""Rewards of one group, shape [G]."""

Advantage = Callable[[Rewards], Rewards]
"""[G] rewards to [G] advantages."""

STD_FLOOR = 1e-4
"""Added to the deviation before dividing, as TRL does; rewards live around 1, so this only stops a division by zero."""


def group_mean(rewards: Rewards) -> Rewards:
    """r - mean(r). Dr. GRPO (arXiv 2503.20783): no division by the deviation, which would favour too easy and too
    hard prompts.
    """
    centred: Rewards = rewards - rewards.mean()
    return centred


def group_mean_std(rewards: Rewards) -> Rewards:
    """(r - mean(r)) / std(r), the GRPO of DeepSeekMath (arXiv 2402.03300), with the sample deviation (G - 1)."""
    if len(rewards) == 1:
        return np.zeros_like(rewards)
    scaled: Rewards = group_mean(rewards) / (rewards.std(ddof=1) + STD_FLOOR)
    return scaled


def leave_one_out(rewards: Rewards) -> Rewards:
    """r_i minus the mean of the others, RLOO (arXiv 2402.14740): group_mean times G / (G - 1). A lone completion
    gets 0.
    """
    group = len(rewards)
    return group_mean(rewards) * (group / (group - 1)) if group > 1 else np.zeros_like(rewards)


ADVANTAGES: Mapping[str, Advantage] = MappingProxyType(
    {"group_mean": group_mean, "group_mean_std": group_mean_std, "leave_one_out": leave_one_out}
)
"""Advantages by the name a configuration uses."""


def advantages(rewards: ArrayLike, kind: str = "group_mean") -> NDArray[np.float32]:
    """Return float32 advantages [G] of one group's rewards [G].

    Equal rewards give exact zeros whatever `kind`, also where the mean of equal floats would round.
    Raises KeyError for an unknown kind, ValueError for rewards that are empty, not one-dimensional or not finite.
    """
    values = np.asarray(rewards, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError("a group needs at least one reward, in one dimension, all of them finite")
    if values.min() == values.max():
        return np.zeros(values.shape, np.float32)
    return ADVANTAGES[kind](values).astype(np.float32)
