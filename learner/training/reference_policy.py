"""Keep a copy of the weights that can take the policy's place for a while.

It holds the weights that a run began with, for a KL penalty and DPO, or the weights as an export rounds them. The copy
takes 4 bytes a trained parameter. If only adapters are trained, the copy is small, and the reference is the base model.

Invariants:

- Nothing changes outside `in_force`.
- After `in_force` the policy's weights are the same as before, to the bit, even if an error was raised inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor


class Reference:
    """A copy of `parameters` as they are now."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = list(parameters)
        self._kept = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def round(self, dtype: torch.dtype) -> None:
        """Round the copy to `dtype`, as an export does."""
        for kept in self._kept:
            kept.copy_(kept.to(dtype))

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Let the policy have the reference's weights inside the block."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        # One tensor at a time, so that there is never a second copy of the model.
        for parameter, kept in zip(self._parameters, self._kept, strict=True):
            now = parameter.detach().clone()
            parameter.copy_(kept)
            kept.copy_(now)
