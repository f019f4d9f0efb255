"""Which versions must go so that something new fits: a rule without memory.

What always holds: what is pinned stays; nothing goes unless that makes enough room, and no more goes than must; parts
go first, then the oldest, and what patches to the new version start from goes last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from protocol.core.ids import ManifestHash, PolicyVersion


@dataclass(frozen=True, kw_only=True)
class Tenant:
    """A version in the store and the room it takes."""

    name: ManifestHash
    version: PolicyVersion
    size_bytes: int
    complete: bool
    pinned: bool


@dataclass(frozen=True, kw_only=True)
class NoRoom:
    """Refusal: what is pinned takes `staying_bytes`, and beside that the new cannot be held by less than the quota
    `needed_bytes`.
    """

    staying_bytes: int
    needed_bytes: int


def dispensable(tenants: Iterable[Tenant], bases: Collection[ManifestHash]) -> list[Tenant]:
    """Tenants that may go, in the order of going."""
    free = [tenant for tenant in tenants if not tenant.pinned]
    return sorted(free, key=lambda one: (one.name in bases, one.complete, one.version, one.name))


def make_room(
    tenants: Sequence[Tenant], size_bytes: int, *, quota_bytes: int, bases: Collection[ManifestHash] = ()
) -> list[Tenant] | NoRoom:
    """Return who must go so that `size_bytes` more fit into `quota_bytes`, nobody if they do already.

    Args:
        bases: versions that patches to the new one start from.
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
