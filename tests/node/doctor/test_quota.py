"""Decide whether a model fits in a quota."""

from __future__ import annotations

import pytest

from node.doctor.quota import Fit, fit_of


@pytest.mark.parametrize(
    ("quota", "fit"), [(325, Fit.WELL), (324, Fit.TIGHT), (200, Fit.TIGHT), (199, Fit.NOT), (0, Fit.NOT)]
)
def test_it_takes_two_versions_and_in_comfort_three(quota: int, fit: Fit) -> None:
    assert fit_of(100, quota) is fit
