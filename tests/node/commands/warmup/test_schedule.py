"""The learning rate of each step of a warm-up."""

from __future__ import annotations

import pytest
import torch
from transformers import get_cosine_schedule_with_warmup, get_linear_schedule_with_warmup

from node.commands.warmup.schedule import Decay, Schedule

MAKERS = {"linear": get_linear_schedule_with_warmup, "cosine": get_cosine_schedule_with_warmup}


@pytest.mark.parametrize("decay", ["linear", "cosine"])
@pytest.mark.parametrize("rise", [0, 4])
def test_the_fall_is_that_of_transformers(decay: Decay, rise: int) -> None:
    total, optimizer = 25, torch.optim.AdamW([torch.zeros(1)], lr=1.0)
    theirs = MAKERS[decay](optimizer, rise, total)
    ours = Schedule(rate=1.0, rise=rise, total=total, decay=decay)
    for step in range(total):
        if step >= rise:
            assert ours.at(step) == pytest.approx(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()


def test_the_rise_begins_above_nothing_and_no_rate_is_nothing() -> None:
    found = Schedule(rate=2e-5, rise=4, total=10, decay="linear")
    assert [found.at(step) for step in range(4)] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert found.at(4) == 1.0
    assert found.at(10) > 0
    assert {Schedule(rate=1.0, rise=0, total=5, decay="none").at(step) for step in range(9)} == {1.0}
    assert Schedule(rate=1.0, rise=9, total=3, decay="cosine").at(2) == pytest.approx(0.3)
