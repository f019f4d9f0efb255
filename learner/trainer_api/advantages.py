"""Turn the rewards of a batch into one advantage for each completion.

A batch has one reward for each completion, or several with `gdpo`. A completion is compared with the others in its
group or, where a function says so, with the whole batch. Pure numpy: the trainer computes advantages from rewards, and
the node may show them without torch.

Invariants:

- A completion gets exactly zero if all that it is compared with have the same reward, even where the mean of equal
  floats would round. Such a completion teaches nothing, and may be dropped before the forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

Rewards = NDArray[np.float64]
"""Rewards of a group [G], or of a batch [B]."""

Advantage = Callable[[Rewards, NDArray[np.int64]], Rewards]
"""A function from rewards [B] and the sizes of their groups, in order, to advantages [B]."""

STD_FLOOR = 1e-4
"""Added to the deviation before dividing, as TRL does. Rewards are around 1, so it only prevents a division by zero."""


def by_group(rule: Callable[[Rewards], Rewards]) -> Advantage:
    """Return an advantage that compares only within each group, by `rule`: [G] rewards to [G] advantages."""

    def advantage(rewards: Rewards, sizes: NDArray[np.int64]) -> Rewards:
        return np.concatenate([zeros_where_equal(rule, group) for group in _groups(rewards, sizes)])

    return advantage


def zeros_where_equal(rule: Callable[[Rewards], Rewards], rewards: Rewards) -> Rewards:
    """Return `rule` of the rewards, but exact zeros if they are all equal: the mean of seven times 0.1 is not 0.1."""
    return np.zeros_like(rewards) if rewards.min() == rewards.max() else rule(rewards)


def group_mean(rewards: Rewards) -> Rewards:
    """Return r - mean(r), Dr. GRPO (arXiv 2503.20783). There is no division by the deviation, because it would favour
    prompts that are too easy or too hard.
    """
    centred: Rewards = rewards - rewards.mean()
    return centred


def group_mean_std(rewards: Rewards) -> Rewards:
    """Return (r - mean(r)) / std(r), GRPO of DeepSeekMath (arXiv 2402.03300), with the sample deviation (G - 1)."""
    scaled: Rewards = group_mean(rewards) / (rewards.std(ddof=1) + STD_FLOOR)
    return scaled


def leave_one_out(rewards: Rewards) -> Rewards:
    """Return r_i minus the mean of the others, RLOO (arXiv 2402.14740): group_mean times G / (G - 1)."""
    return group_mean(rewards) * (len(rewards) / (len(rewards) - 1))


def batch_mean(rewards: Rewards, sizes: NDArray[np.int64]) -> Rewards:
    """Return r minus the mean of the whole batch: REINFORCE with a baseline (Williams 1992, section 4). It needs no
    groups, so it separates an easy prompt from a good completion only on average.
    """
    del sizes
    return zeros_where_equal(group_mean, rewards)


def none(rewards: Rewards, sizes: NDArray[np.int64]) -> Rewards:
    """Return zeros: rewards teach nothing, and only the teacher's term is left (`Recipe.teacher`)."""
    del sizes
    return np.zeros_like(rewards)


def gdpo(rewards: ArrayLike, weights: ArrayLike, sizes: ArrayLike) -> Rewards:
    """Return advantages [B] of a batch with several rewards: GDPO (arXiv 2601.05242; TRL's `normalize_then_sum`):

        A_k = (r_k - mean(r_k)) / std(r_k)  in each group        A = sum of w_k A_k        A / std(A)  over the batch

    In a sum of the rewards themselves, a reward that spreads little would count for little. A reward of NaN says
    nothing about its completion, which is then not compared in that reward. A completion whose rewards are all NaN has
    the advantage 0. TRL also subtracts the mean of the batch. It is 0 except for rounding, and would give an advantage
    to completions that teach nothing.

    Raises ValueError for rewards that are not of two dimensions or infinite, for weights of another shape or infinite,
    and for sizes that do not add up to B.

    Args:
        rewards: rewards [B, K].
        weights: weights of the rewards, [K], or [B, K] if they differ by completion.
        sizes: sizes of the groups [G], in order.
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
    """Return `group_mean_std` among the rewards of a group that are numbers; 0 for the others."""
    found, told = np.zeros_like(rewards), ~np.isnan(rewards)
    if told.any():
        found[told] = zeros_where_equal(group_mean_std, rewards[told])
    return found


def _gdpo_of_one(rewards: Rewards, sizes: NDArray[np.int64]) -> Rewards:
    """Return `gdpo` of a batch with one reward: `group_mean_std`, divided by the deviation over the batch."""
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
"""Advantages by the name that a configuration uses. Those that compare within a group give 0 to a completion that is
alone in its group."""


def compared(
    rewards: ArrayLike,
    sizes: ArrayLike,
    kind: str,
    parts: NDArray[np.float32] | None = None,
    part_weights: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Return float32 advantages [B] of a batch whose tasks may give several rewards.

    "gdpo" compares each reward by itself, all other kinds their weighted sums. Raises as `advantages` and `gdpo` do.

    Args:
        rewards: weighted sums of the rewards [B].
        sizes: sizes of the groups [G], in order.
        kind: a name in ADVANTAGES.
        parts: the single rewards [B, K], NaN where a reward says nothing.
        part_weights: the weights of `parts` [B, K].
    """
    if kind == "gdpo" and parts is not None and part_weights is not None:
        return gdpo(parts, part_weights, sizes).astype(np.float32)
    return advantages(rewards, sizes, kind)


def advantages(rewards: ArrayLike, sizes: ArrayLike, kind: str) -> NDArray[np.float32]:
    """Return float32 advantages [B] of a batch's rewards [B], whose groups have `sizes` [G], in order.

    Raises KeyError for an unknown kind. Raises ValueError for rewards that are empty, not one-dimensional or not
    finite, and for sizes that do not add up to their number.
    """
    values, counts = np.asarray(rewards, dtype=np.float64), np.asarray(sizes, dtype=np.int64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError("advantages need at least one reward, in one dimension, all of them finite")
    _require_sizes(counts, len(values))
    return ADVANTAGES[kind](values, counts).astype(np.float32)
