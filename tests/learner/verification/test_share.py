"""Who is audited how often."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.verification.share import FLOOR, NEWCOMER_GROUPS, audit_share, is_chosen
from protocol.ids import LeaseId

LEASES = [LeaseId(number.to_bytes(16, "big")) for number in range(20_000)]
SECRET = bytes(range(32))


def test_all_of_a_newcomers_groups_are_audited_and_never_fewer_than_the_floor() -> None:
    shares = [audit_share(passed) for passed in range(10_000)]
    assert shares[:NEWCOMER_GROUPS] == [1.0] * NEWCOMER_GROUPS
    assert all(one >= other for one, other in pairwise(shares))
    assert shares[NEWCOMER_GROUPS] < 1.0
    assert shares[-1] == FLOOR


@given(st.binary(min_size=16, max_size=16).map(LeaseId), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_has_all_of_a_smaller_one(lease: LeaseId, one: float, other: float) -> None:
    assert is_chosen(SECRET, lease, 1.0)
    assert not is_chosen(SECRET, lease, 0.0)
    assert is_chosen(SECRET, lease, max(one, other)) or not is_chosen(SECRET, lease, min(one, other))


@pytest.mark.parametrize("share", [0.03, 0.5])
def test_as_many_are_chosen_as_was_asked_and_others_under_another_secret(share: float) -> None:
    mine = {lease for lease in LEASES if is_chosen(SECRET, lease, share)}
    theirs = {lease for lease in LEASES if is_chosen(bytes(32), lease, share)}
    assert len(mine) / len(LEASES) == pytest.approx(share, rel=0.15)
    assert len(mine & theirs) / len(LEASES) == pytest.approx(share**2, rel=0.6)
