"""Whether the versions of a model fit in what a node may take of the disk."""

from __future__ import annotations

from enum import Enum

COMFORTABLE = 3.25
"""Times the model that a quota holds in comfort: in service, newest, being fetched, and patches."""

LEAST = 2
"""Times the model without which no version replaces another."""


class Fit(Enum):
    """How a model fits."""

    WELL = "fits"
    TIGHT = "is tight"
    NOT = "does not fit"


def fit_of(model_bytes: int, quota_bytes: float) -> Fit:
    """How versions of `model_bytes` fit in `quota_bytes`."""
    if model_bytes * COMFORTABLE <= quota_bytes:
        return Fit.WELL
    return Fit.TIGHT if LEAST * model_bytes <= quota_bytes else Fit.NOT
