"""How much better than others a completion was: rewards of a batch in, one advantage per completion out.

A batch has one reward a completion, or with `gdpo` several.

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
        return np.concatenate([zeros_where_equal(rule, group) for group in _groups(rewards, sizes)])

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


def none(rewards: Rewards, sizes: NDArray[np.int64]) -> Rewards:
    """Zeros: rewards teach nothing, and what is left is a teacher's word (`Recipe.teacher`)."""
    del sizes
    return np.zeros_like(rewards)


def gdpo(rewards: ArrayLike, weights: ArrayLike, sizes: ArrayLike) -> Rewards:
    """Return advantages [B] of a batch with several rewards: `rewards` [B, K], the `weights` of the rewards, [K], or
    [B, K] where they differ by completion, and the `sizes` [G] of the groups, in order. GDPO (arXiv 2601.05242; TRL's
    `normalize_then_sum`):

        A_k = (r_k - mean(r_k)) / std(r_k)  in each group        A = sum of w_k A_k        A / std(A)  over the batch

    A sum of the rewards themselves would count for little what spreads little. NaN: this reward says nothing of that
    completion, which is no rival for it then; of a completion of which none says anything the advantage is 0. The mean
    of the batch, which TRL subtracts, is 0 but for rounding, and would make something of completions that teach
    nothing.

    Raises ValueError for rewards that are not of two dimensions or infinite, for weights of another shape or infinite,
    and for sizes that do not add up to B.
    """
    values, counts = np.asarray(rewards, dtype=np.float64), np.asarray(sizes, dtype=np.int64)
    shares = np.asarray(weights, dtype=np.float64)
    if values.ndim != 2 or values.size == 0 or np.isinf(values).any():
        raise ValueError("gdpo needs a row of rewards for each completion, none of them infinite")
    if shares.shape not in (values.shape, values.shape[1:]) or not np.isfinite(shares).all():
        raise ValueError(f"gdpo needs a finite weight for each of {values.shape[1]} rewards")
    _require_sizes(counts, len(values))
    columns = [np.concatenate([_known(group) for group in _groups(column, counts)]) for column in values.T]
    summed = (np.stack(columns, axis=1) * shares).sum(axis=1)
    told = ~np.isnan(values).all(axis=1)
    deviation = summed[told].std(ddof=1) if told.sum() > 1 else 0.0
    scaled: Rewards = summed / (deviation + STD_FLOOR)
    return scaled


def _known(rewards: Rewards) -> Rewards:
    """`group_mean_std` among the rewards of a group that are numbers; 0 for the others."""
    found, told = np.zeros_like(rewards), ~np.isnan(rewards)
    if told.any():
        found[told] = zeros_where_equal(group_mean_std, rewards[told])
    return found


def _gdpo_of_one(rewards: Rewards, sizes: NDArray[np.int64]) -> Rewards:
    """`gdpo` of a batch with one reward: `group_mean_std`, divided by the deviation over the batch."""
    return gdpo(rewards[:, None], np.ones(1), sizes)


def _groups(rewards: Rewards, sizes: NDArray[np.int64]) -> list[Rewards]:
    return np.split(rewards, np.cumsum(sizes)[:-1])


def _require_sizes(sizes: NDArray[np.int64], rewards: int) -> None:
    if sizes.ndim != 1 or sizes.min(initial=1) < 1 or sizes.sum() != rewards:
        raise ValueError(f"the sizes of the groups must each be at least 1 and add up to {rewards} rewards")


ADVANTAGES: Mapping[str, Advantage] = MappingProxyType(
    {
        "group_mean": by_group(group_mean),
        "group_mean_std": by_group(group_mean_std),
        "leave_one_out": by_group(leave_one_out),
        "batch_mean": batch_mean,
        "gdpo": _gdpo_of_one,
        "none": none,
    }
)
"""Advantages by the name a configuration uses. A completion without siblings gets 0 from those that compare them."""


def compared(
    rewards: ArrayLike,
    sizes: ArrayLike,
    kind: str,
    parts: NDArray[np.float32] | None = None,
    part_weights: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Return float32 advantages [B] of a batch whose tasks may give several rewards: `parts` and `part_weights`
    [B, K], of which `rewards` [B] are the weighted sums. "gdpo" compares each of them by itself, the others their sums.

    Raises as `advantages` and `gdpo` do.
    """
    if kind == "gdpo" and parts is not None and part_weights is not None:
        return gdpo(parts, part_weights, sizes).astype(np.float32)
    return advantages(rewards, sizes, kind)


def advantages(rewards: ArrayLike, sizes: ArrayLike, kind: str) -> NDArray[np.float32]:
    """Return float32 advantages [B] of a batch's rewards [B], whose groups have `sizes` [G], in order.

    Raises KeyError for an unknown kind, ValueError for rewards that are empty, not one-dimensional or not finite, and
    for sizes that do not add up to them.
    """
    values, counts = np.asarray(rewards, dtype=np.float64), np.asarray(sizes, dtype=np.int64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError("advantages need at least one reward, in one dimension, all of them finite")
    _require_sizes(counts, len(values))
    return ADVANTAGES[kind](values, counts).astype(np.float32)
