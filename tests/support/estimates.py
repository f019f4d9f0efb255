"""Compare estimates with the values that a plan used."""

from __future__ import annotations

from learner.provisioning.estimation.estimates import DRIFT, Estimate


def has_drifted(estimate: Estimate, planned: float) -> bool:
    """Return whether the estimate has moved away from the value that was `planned` with."""
    outside = not estimate.low <= planned <= estimate.high
    return outside and abs(estimate.value - planned) > DRIFT * abs(planned)
