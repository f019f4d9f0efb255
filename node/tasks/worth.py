"""What a completion is worth: a number that knows which rewards with names it is made of.

What always holds: it is finite, and the weighted sum of its parts, where it has some; it is told to another process,
and read there, as the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from learner.rollouts.reward_parts import MAX_PARTS, Parts, RewardPart, total
from node.tasks.api.interface import MAX_REWARD


class Worth(float):
    """See the module's paragraph. As a number it is the reward."""

    parts: Parts = ()

    @classmethod
    def of(cls, parts: Parts) -> Worth:
        """The sum of these. Raises ValueError where that is no number that a reward may be."""
        worth = cls(total(parts))
        if not abs(worth) <= MAX_REWARD:
            raise ValueError(f"the sum of the rewards is {float(worth)}")
        worth.parts = parts
        return worth


def parts_of(reward: float) -> Parts:
    """What a reward is made of; none of a plain number."""
    return reward.parts if isinstance(reward, Worth) else ()


def write_worth(reward: float) -> dict[str, Any]:
    """The fields of a reply that tell it."""
    told = [[part.name, part.value if part.is_known else None, part.weight] for part in parts_of(reward)]
    return {"reward": float(reward), **({"parts": told} if told else {})}


def read_worth(reply: Mapping[str, Any]) -> float:
    """What `write_worth` wrote. Raises KeyError, TypeError or ValueError for what is no reward."""
    told = reply.get("parts", ())
    if len(told) > MAX_PARTS:
        raise ValueError(f"{len(told)} rewards")
    if told:
        return Worth.of(tuple(_read_part(*one) for one in told))
    reward = float(reply["reward"])
    if not abs(reward) <= MAX_REWARD:  # as nothing is that is no number
        raise ValueError(f"the reward {reward}")
    return reward


def _read_part(name: str, value: float | None, weight: float) -> RewardPart:
    if not isinstance(name, str) or not abs(weight) <= MAX_REWARD or not (value is None or abs(value) <= MAX_REWARD):
        raise ValueError(f"the reward {name!r} of {value}, times {weight}")
    return RewardPart(name=name, value=math.nan if value is None else float(value), weight=float(weight))
