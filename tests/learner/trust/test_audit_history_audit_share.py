"""Decide how often each peer is audited."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.trust.audit_history import FLOOR, NEWCOMER_GROUPS, audit_share, is_chosen
from protocol.core.ids import LeaseId, ManifestHash

LEASES = [LeaseId(number.to_bytes(16, "big")) for number in range(20_000)]
SECRET = bytes(range(32))


def test_all_of_a_newcomers_groups_are_audited_and_never_fewer_than_the_floor() -> None:
    shares = [audit_share(passed) for passed in range(10_000)]
    assert shares[:NEWCOMER_GROUPS] == [1.0] * NEWCOMER_GROUPS
    assert all(one >= other for one, other in pairwise(shares))
    assert shares[NEWCOMER_GROUPS] < 1.0
    assert shares[-1] == FLOOR


def version_of(lease: LeaseId, each: int) -> ManifestHash:
    """Every `each` leases are of one version."""
    return ManifestHash((int.from_bytes(lease, "big") // each).to_bytes(32, "big"))


@given(
    st.binary(min_size=16, max_size=16).map(LeaseId),
    st.binary(min_size=32, max_size=32).map(ManifestHash),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_a_larger_share_has_all_of_a_smaller_one(
    lease: LeaseId, version: ManifestHash, one: float, other: float
) -> None:
    assert is_chosen(SECRET, lease, version, 1.0)
    assert not is_chosen(SECRET, lease, version, 0.0)
    larger, smaller = max(one, other), min(one, other)
    assert is_chosen(SECRET, lease, version, larger) or not is_chosen(SECRET, lease, version, smaller)


def test_a_small_share_is_of_few_versions() -> None:
    """With 64 leases a version, picking single leases at one in 33 would load most versions for one or two of them."""
    versions = {version_of(lease, 64) for lease in LEASES}
    looked_at = {version_of(lease, 64) for lease in LEASES if is_chosen(SECRET, lease, version_of(lease, 64), FLOOR)}
    assert 0.15 < len(looked_at) / len(versions) < 0.3


@pytest.mark.parametrize("share", [0.03, 0.5])
def test_as_many_are_chosen_as_was_asked_and_others_under_another_secret(share: float) -> None:
    mine = {lease for lease in LEASES if is_chosen(SECRET, lease, version_of(lease, 4), share)}
    theirs = {lease for lease in LEASES if is_chosen(bytes(32), lease, version_of(lease, 4), share)}
    assert len(mine) / len(LEASES) == pytest.approx(share, rel=0.15)
    assert len(mine & theirs) / len(LEASES) == pytest.approx(share**2, rel=0.6)
