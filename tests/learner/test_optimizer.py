"""Several updates or none: what `all_or_nothing` puts back, whatever went wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from learner.optimizer import all_or_nothing


def update(optimizer: torch.optim.AdamW, weight: torch.nn.Parameter) -> None:
    optimizer.zero_grad()
    (weight * weight).sum().backward()
    optimizer.step()


def numbers(optimizer: torch.optim.AdamW, weight: torch.nn.Parameter) -> list[list[float]]:
    state = optimizer.state.get(weight, {})
    return [weight.tolist(), *(state[name].reshape(-1).tolist() for name in sorted(state))]


@pytest.mark.parametrize("error", [ArithmeticError, RuntimeError, MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("updates_before", [0, 3])
def test_whatever_is_raised_nothing_has_happened(error: Callable[[], BaseException], updates_before: int) -> None:
    weight = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    for _ in range(updates_before):
        update(optimizer, weight)
    before = numbers(optimizer, weight)
    with pytest.raises(BaseException) as caught, all_or_nothing(optimizer, 2):  # noqa: PT011, PT012
        update(optimizer, weight)
        assert numbers(optimizer, weight) != before
        raise error()
    assert caught.type is error
    assert numbers(optimizer, weight) == before
    assert bool(optimizer.state) == bool(updates_before), "moments that were not there are not there"


def test_updates_that_go_well_stay() -> None:
    kept, plain = (torch.nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    guarded, free = (torch.optim.AdamW([weight], lr=0.1, fused=True) for weight in (kept, plain))
    with all_or_nothing(guarded, 2):
        for _ in range(2):
            update(guarded, kept)
    for _ in range(2):
        update(free, plain)
    assert numbers(guarded, kept) == numbers(free, plain)
