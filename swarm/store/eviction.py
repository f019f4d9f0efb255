"""Decide which versions to evict so that a new one fits. The decision depends on the arguments alone.

Invariants:

- Pinned versions stay.
- Nothing is evicted unless that frees enough room, and no more versions are evicted than necessary.
- Partial versions go first, then the oldest. The bases of patches to the new version go last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from protocol.core.ids import ManifestHash, PolicyVersion


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A version in the store, and its size on the disk."""

    name: ManifestHash
    version: PolicyVersion
    size_bytes: int
    complete: bool
    pinned: bool


@dataclass(frozen=True, kw_only=True)
class NoRoom:
    """There is no room: pinned versions take `staying_bytes`, so the quota would have to be at least `needed_bytes`."""

    staying_bytes: int
    needed_bytes: int


def dispensable(tenants: Iterable[Tenant], bases: Collection[ManifestHash]) -> list[Tenant]:
    """Return the versions that may be evicted, in the order of eviction."""
    free = [tenant for tenant in tenants if not tenant.pinned]
    return sorted(free, key=lambda one: (one.name in bases, one.complete, one.version, one.name))


def make_room(
    tenants: Sequence[Tenant], size_bytes: int, *, quota_bytes: int, bases: Collection[ManifestHash] = ()
) -> list[Tenant] | NoRoom:
    """Return the versions to evict so that `size_bytes` more fit into `quota_bytes`; none if they fit already.

    Args:
        tenants: versions in the store.
        size_bytes: size of the new version in bytes.
        quota_bytes: quota of the store in bytes.
        bases: bases of the patches to the new version.
    """
    going: list[Tenant] = []
    used = sum(tenant.size_bytes for tenant in tenants)
    for tenant in dispensable(tenants, bases):
        if used + size_bytes <= quota_bytes:
            break
        going.append(tenant)
        used -= tenant.size_bytes
    if used + size_bytes > quota_bytes:
        return NoRoom(staying_bytes=used, needed_bytes=used + size_bytes)
    return going


def beyond_quota(tenants: Sequence[Tenant], quota_bytes: int) -> list[Tenant]:
    """Return the complete versions to evict at once for a smaller quota, the oldest first.

    The newest version stays, and so do partial ones, which are being fetched: the quota may be exceeded until the next
    version needs room.
    """
    complete = sorted((tenant for tenant in tenants if tenant.complete), key=lambda one: (one.version, one.name))
    going: list[Tenant] = []
    used = sum(tenant.size_bytes for tenant in tenants)
    for tenant in complete[:-1]:
        if used > quota_bytes and not tenant.pinned:
            going.append(tenant)
            used -= tenant.size_bytes
    return going
