"""Hold the experts that engines chose for the tokens of a batch, and place them in a microbatch.

A target's experts are those of the position that predicts it, so they follow the target in every layout. Siblings that
share a prompt share the position that predicts their first tokens. That position gets the last sibling's experts, which
differ from the others' only where engines did.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NOBODY = -1
"""Stands in place of an expert: nothing is replayed there (`learner.training.model.router_replay`)."""


@dataclass(frozen=True, kw_only=True)
class Routes:
    """For T targets `experts` [T, layers, top_k] unsigned, and whether each target has any, `routed` [T] bool."""

    experts: NDArray[Any]
    routed: NDArray[np.bool_]

    def of(self, targets: slice) -> Routes:
        """Return the routes of some targets."""
        return Routes(experts=self.experts[targets], routed=self.routed[targets])

    def at(self, numbers: NDArray[np.int64], predictors: Tensor, positions: int) -> Tensor | None:
        """Return the experts (`positions`, layers, top_k) int64 at the `predictors` [N] of the targets with these
        `numbers` [N], NOBODY elsewhere; None if no target has any."""
        has = self.routed[numbers]
        if not has.any():
            return None
        found = np.full((positions, *self.experts.shape[1:]), NOBODY, np.int64)
        found[predictors.numpy()[has]] = self.experts[numbers[has]]
        return torch.from_numpy(found)
