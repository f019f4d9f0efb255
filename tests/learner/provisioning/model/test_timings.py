"""The times of a clockwork: what they refuse."""

from __future__ import annotations

import math

import pytest

from learner.provisioning.model.timings import Timings


@pytest.mark.parametrize(
    "wrong",
    [
        {"train_s": 0.0},
        {"train_s": -1.0},
        {"train_s": math.nan},
        {"rollouts": 0},
        {"broadcast_s": -0.1},
        {"generation_s": math.inf},
    ],
)
def test_times_that_are_none_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="number"):
        Timings(**({"train_s": 1.0, "rollouts": 1, "broadcast_s": 0.0} | wrong))  # type: ignore[arg-type]
