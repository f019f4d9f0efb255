"""Send a reward of several parts to another process, and read it there."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.rollouts.reward_parts import MAX_PARTS, RewardPart
from node.tasks.composed_reward import ComposedReward, parts_of, read_reward, write_reward

VALUES = st.none() | st.floats(-1e6, 1e6)


@given(
    st.lists(st.tuples(st.text(min_size=1, max_size=8), VALUES, st.floats(-5, 5)), max_size=4, unique_by=lambda t: t[0])
)
def test_what_is_told_is_read(rows: list[tuple[str, float | None, float]]) -> None:
    parts = tuple(
        RewardPart(name=name, value=math.nan if value is None else value, weight=weight) for name, value, weight in rows
    )
    worth = ComposedReward.of(parts) if any(part.is_known for part in parts) else 0.25
    read = read_reward(json.loads(json.dumps(write_reward(worth))))
    assert float(read) == float(worth)
    assert repr(parts_of(read)) == repr(parts_of(worth))


def test_a_plain_number_has_no_parts() -> None:
    assert write_reward(0.5) == {"reward": 0.5}
    assert parts_of(0.5) == ()


@pytest.mark.parametrize(
    "reply",
    [
        {},
        {"reward": "x"},
        {"reward": math.nan},
        {"reward": 1e19},
        {"reward": 1.0, "parts": [["a", 1e19, 1.0]]},
        {"reward": 1.0, "parts": [["a", 1e18, 1e18]]},
        {"reward": 1.0, "parts": [["a", None, 1.0]]},
        {"reward": 1.0, "parts": [[3, 1.0, 1.0]]},
        {"reward": 1.0, "parts": [["a", 1.0]]},
        {"reward": 1.0, "parts": [["a", 1.0, math.inf]]},
        {"reward": 1.0, "parts": [[str(n), 1.0, 1.0] for n in range(MAX_PARTS + 1)]},
    ],
)
def test_what_is_no_reward_is_refused(reply: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_reward(reply)
