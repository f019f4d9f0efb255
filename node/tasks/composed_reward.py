"""Represent a reward as a number that knows the named rewards it consists of.

Invariants:

- A `ComposedReward` is finite. If it has parts, it is their weighted sum.
- `read_reward` in another process returns exactly what `write_reward` wrote.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from learner.rollouts.reward_parts import MAX_PARTS, Parts, RewardPart, total
from node.tasks.api.interface import MAX_REWARD


class ComposedReward(float):
    """A reward, as a number, with the named rewards that it is the sum of."""

    parts: Parts = ()

    @classmethod
    def of(cls, parts: Parts) -> ComposedReward:
        """Return the weighted sum of `parts`. Raises ValueError if the sum is NaN or beyond MAX_REWARD."""
        reward = cls(total(parts))
        if not abs(reward) <= MAX_REWARD:
            raise ValueError(f"the sum of the rewards is {float(reward)}")
        reward.parts = parts
        return reward


def parts_of(reward: float) -> Parts:
    """Return the named rewards that a reward consists of; empty for a plain number."""
    return reward.parts if isinstance(reward, ComposedReward) else ()


def write_reward(reward: float) -> dict[str, Any]:
    """Return the fields that carry a reward in a message to another process."""
    told = [[part.name, part.value if part.is_known else None, part.weight] for part in parts_of(reward)]
    return {"reward": float(reward), **({"parts": told} if told else {})}


def read_reward(reply: Mapping[str, Any]) -> float:
    """Read what `write_reward` wrote. Raises KeyError, TypeError or ValueError if it is not a reward."""
    told = reply.get("parts", ())
    if len(told) > MAX_PARTS:
        raise ValueError(f"{len(told)} rewards")
    if told:
        return ComposedReward.of(tuple(_read_part(*one) for one in told))
    reward = float(reply["reward"])
    if not abs(reward) <= MAX_REWARD:  # also true for NaN
        raise ValueError(f"the reward {reward}")
    return reward


def _read_part(name: str, value: float | None, weight: float) -> RewardPart:
    if not isinstance(name, str) or not abs(weight) <= MAX_REWARD or not (value is None or abs(value) <= MAX_REWARD):
        raise ValueError(f"the reward {name!r} of {value}, times {weight}")
    return RewardPart(name=name, value=math.nan if value is None else float(value), weight=float(weight))
