"""Estimates, judged by what was planned with."""

from __future__ import annotations

from learner.provisioning.estimation.estimates import DRIFT, Estimate


def has_drifted(estimate: Estimate, planned: float) -> bool:
    """Whether what was `planned` with is no longer so."""
    outside = not estimate.low <= planned <= estimate.high
    return outside and abs(estimate.value - planned) > DRIFT * abs(planned)
