"""A copy of the weights that can take the policy's place: those that a run began with, which a KL penalty and DPO
compare the policy with, or those that an export rounds.

What always holds: outside `in_force` nothing is changed; inside, and whatever happens there, the policy's weights are
kept and come back to the bit. A frozen copy of what is trained, so 4 bytes a trained parameter: of a policy that trains
adapters alone that is the base model, for next to nothing.
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
        """Let the policy be the reference while inside."""
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        # One tensor at a time, so that no second copy of the model is ever there.
        for parameter, kept in zip(self._parameters, self._kept, strict=True):
            now = parameter.detach().clone()
            parameter.copy_(kept)
            kept.copy_(now)
