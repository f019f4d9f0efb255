"""Judge whether the versions of a model fit in a node's disk quota."""

from __future__ import annotations

from enum import Enum

COMFORTABLE = 3.25
"""How many times the model's size a quota needs for comfort: active and newest version, one being fetched, patches."""

LEAST = 2
"""How many times the model's size a quota needs at least: below that no version can replace another."""


class Fit(Enum):
    """How a model fits."""

    WELL = "fits"
    TIGHT = "is tight"
    NOT = "does not fit"


def fit_of(model_bytes: int, quota_bytes: float) -> Fit:
    """Return how versions of `model_bytes` fit in `quota_bytes`."""
    if model_bytes * COMFORTABLE <= quota_bytes:
        return Fit.WELL
    return Fit.TIGHT if LEAST * model_bytes <= quota_bytes else Fit.NOT
