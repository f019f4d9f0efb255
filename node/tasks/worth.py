"""Represent a reward as a number that knows the named rewards it consists of.

Invariants:

- A `Worth` is finite. If it has parts, it is their weighted sum.
- `read_worth` in another process returns exactly what `write_worth` wrote.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from learner.rollouts.reward_parts import MAX_PARTS, Parts, RewardPart, total
from node.tasks.api.interface import MAX_REWARD


class Worth(float):
    """A reward, as a number, with the named rewards that it is the sum of."""

    parts: Parts = ()

    @classmethod
    def of(cls, parts: Parts) -> Worth:
        """Return the weighted sum of `parts`. Raises ValueError if the sum is NaN or beyond MAX_REWARD."""
        worth = cls(total(parts))
        if not abs(worth) <= MAX_REWARD:
            raise ValueError(f"the sum of the rewards is {float(worth)}")
        worth.parts = parts
        return worth


def parts_of(reward: float) -> Parts:
    """Return the named rewards that a reward consists of; empty for a plain number."""
    return reward.parts if isinstance(reward, Worth) else ()


def write_worth(reward: float) -> dict[str, Any]:
    """Return the fields that carry a reward in a message to another process."""
    told = [[part.name, part.value if part.is_known else None, part.weight] for part in parts_of(reward)]
    return {"reward": float(reward), **({"parts": told} if told else {})}


def read_worth(reply: Mapping[str, Any]) -> float:
    """Read what `write_worth` wrote. Raises KeyError, TypeError or ValueError if it is not a reward."""
    told = reply.get("parts", ())
    if len(told) > MAX_PARTS:
        raise ValueError(f"{len(told)} rewards")
    if told:
        return Worth.of(tuple(_read_part(*one) for one in told))
    reward = float(reply["reward"])
    if not abs(reward) <= MAX_REWARD:  # also true for NaN
        raise ValueError(f"the reward {reward}")
    return reward


def _read_part(name: str, value: float | None, weight: float) -> RewardPart:
    if not isinstance(name, str) or not abs(weight) <= MAX_REWARD or not (value is None or abs(value) <= MAX_REWARD):
        raise ValueError(f"the reward {name!r} of {value}, times {weight}")
    return RewardPart(name=name, value=math.nan if value is None else float(value), weight=float(weight))
