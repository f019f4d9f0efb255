"""Choose the versions that go to make room: no pinned one, none in vain, no more than needed, in a fixed order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.core.ids import ManifestHash, PolicyVersion
from swarm.store.eviction import NoRoom, Tenant, beyond_quota, dispensable, make_room


def tenant(number: int, *, size: int = 10, complete: bool = True, pinned: bool = False) -> Tenant:
    return Tenant(
        name=name(number), version=PolicyVersion(1, number), size_bytes=size, complete=complete, pinned=pinned
    )


def name(number: int) -> ManifestHash:
    return ManifestHash(number.to_bytes(32, "big"))


def test_who_fits_makes_nobody_go() -> None:
    assert make_room([tenant(1), tenant(2)], 10, quota_bytes=30) == []


def test_the_oldest_goes_first_and_no_more_than_must() -> None:
    tenants = [tenant(3), tenant(1), tenant(2)]
    assert make_room(tenants, 10, quota_bytes=30) == [tenant(1)]
    assert make_room(tenants, 11, quota_bytes=30) == [tenant(1), tenant(2)]


def test_parts_go_before_what_is_complete() -> None:
    part = tenant(2, complete=False)
    assert make_room([tenant(1), part], 10, quota_bytes=20) == [part]


def test_what_patches_start_from_goes_last() -> None:
    anchor = tenant(1)
    assert make_room([anchor, tenant(2), tenant(3, pinned=True)], 10, quota_bytes=30, bases={name(1)}) == [tenant(2)]
    assert make_room([anchor, tenant(3, pinned=True)], 10, quota_bytes=20, bases={name(1)}) == [anchor]


def test_when_what_is_pinned_leaves_too_little_nobody_goes_and_the_answer_says_what_would_do() -> None:
    tenants = [tenant(1), tenant(2, pinned=True)]
    assert make_room(tenants, 15, quota_bytes=24) == NoRoom(staying_bytes=10, needed_bytes=25)
    assert make_room(tenants, 15, quota_bytes=25) == [tenant(1)]


def test_for_a_smaller_quota_the_oldest_go_but_not_the_newest_or_one_in_use_or_in_part() -> None:
    tenants = [tenant(4), tenant(1), tenant(2, pinned=True), tenant(3), tenant(0, complete=False)]
    assert beyond_quota(tenants, 50) == []
    assert beyond_quota(tenants, 49) == [tenant(1)]
    assert beyond_quota(tenants, 31) == [tenant(1), tenant(3)]
    assert beyond_quota(tenants, 1) == [tenant(1), tenant(3)], "the quota is exceeded, and the node goes on"
    assert beyond_quota([], 1) == []


TENANTS = st.lists(
    st.builds(tenant, st.integers(0, 9), size=st.integers(0, 20), complete=st.booleans(), pinned=st.booleans()),
    max_size=8,
    unique_by=lambda one: one.name,
)


@given(
    tenants=TENANTS,
    size=st.integers(0, 40),
    quota=st.integers(0, 100),
    bases=st.sets(st.integers(0, 9).map(name)),
)
def test_room_is_made_whenever_it_can_be(
    tenants: list[Tenant], size: int, quota: int, bases: set[ManifestHash]
) -> None:
    used = sum(one.size_bytes for one in tenants)
    pinned = sum(one.size_bytes for one in tenants if one.pinned)
    going = make_room(tenants, size, quota_bytes=quota, bases=bases)
    if isinstance(going, NoRoom):
        assert pinned + size > quota
        assert (going.staying_bytes, going.needed_bytes) == (pinned, pinned + size)
        return
    freed = [one.size_bytes for one in going]
    assert used - sum(freed) + size <= quota
    assert not going or used - sum(freed[:-1]) + size > quota, "the last one had to go, too"
    assert going == dispensable(tenants, bases)[: len(going)]
    assert not any(one.pinned for one in going)
