"""How much better than others a completion was: rewards of a batch in, one advantage per completion out.

What always holds: a completion whose rivals all got its own reward gets exactly zero (it teaches nothing and may be
dropped before the forward pass), also where the mean of equal floats would round. Rivals are the siblings in its
group, or, where a function says so, the whole batch. Pure numpy: the trainer computes advantages from rewards, and the
node may show them without torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

Rewards = NDArray[np.float64]
"""Rewards of a group [G], or of a batch [B]."""

Advantage = Callable[[Rewards, NDArray[np.int64]], Rewards]
"""Rewards [B] and the sizes of their groups, in order, to advantages [B]."""

STD_FLOOR = 1e-4
"""Added to the deviation before dividing, as TRL does; rewards live around 1, so this only stops a division by zero."""


def by_group(rule: Callable[[Rewards], Rewards]) -> Advantage:
    """Return an advantage that knows the siblings of one group alone, by `rule`: [G] rewards to [G] advantages."""

    def advantage(rewards: Rewards, sizes: NDArray[np.int64]) -> Rewards:
        groups = np.split(rewards, np.cumsum(sizes)[:-1])
        return np.concatenate([zeros_where_equal(rule, group) for group in groups])

    return advantage


def zeros_where_equal(rule: Callable[[Rewards], Rewards], rewards: Rewards) -> Rewards:
    """`rule`, but exact zeros for equal rewards: the mean of seven times 0.1 is not 0.1."""
    return np.zeros_like(rewards) if rewards.min() == rewards.max() else rule(rewards)


def group_mean(rewards: Rewards) -> Rewards:
    """r - mean(r). Dr. GRPO (arXiv 2503.20783): no division by the deviation, which would favour too easy and too
    hard prompts.
    """
    centred: Rewards = rewards - rewards.mean()
    return centred


def group_mean_std(rewards: Rewards) -> Rewards:
    """(r - mean(r)) / std(r), the GRPO of DeepSeekMath (arXiv 2402.03300), with the sample deviation (G - 1)."""
    scaled: Rewards = group_mean(rewards) / (rewards.std(ddof=1) + STD_FLOOR)
    return scaled


def leave_one_out(rewards: Rewards) -> Rewards:
    """r_i minus the mean of the others, RLOO (arXiv 2402.14740): group_mean times G / (G - 1)."""
    return group_mean(rewards) * (len(rewards) / (len(rewards) - 1))


def batch_mean(rewards: Rewards, sizes: NDArray[np.int64]) -> Rewards:
    """r minus the mean of the whole batch: REINFORCE with a baseline (Williams 1992, section 4), which asks for no
    groups and therefore tells an easy prompt from a good answer only on average.
    """
    del sizes
    return zeros_where_equal(group_mean, rewards)


ADVANTAGES: Mapping[str, Advantage] = MappingProxyType(
    {
        "group_mean": by_group(group_mean),
        "group_mean_std": by_group(group_mean_std),
        "leave_one_out": by_group(leave_one_out),
        "batch_mean": batch_mean,
    }
)
"""Advantages by the name a configuration uses. A completion without siblings gets 0 from those that compare them."""


def advantages(rewards: ArrayLike, sizes: ArrayLike, kind: str) -> NDArray[np.float32]:
    """Return float32 advantages [B] of a batch's rewards [B], whose groups have `sizes` [G], in order.

    Raises KeyError for an unknown kind, ValueError for rewards that are empty, not one-dimensional or not finite, and
    for sizes that do not add up to them.
    """
    values, counts = np.asarray(rewards, dtype=np.float64), np.asarray(sizes, dtype=np.int64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError("advantages need at least one reward, in one dimension, all of them finite")
    if counts.ndim != 1 or counts.min(initial=1) < 1 or counts.sum() != len(values):
        raise ValueError(f"the sizes of the groups must each be at least 1 and add up to {len(values)} rewards")
    return ADVANTAGES[kind](values, counts).astype(np.float32)
