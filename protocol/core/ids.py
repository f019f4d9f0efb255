"""Define names as types, so that a digest is never mistaken for a peer, or a lease for a record.

Sizes are fixed and checked where a name enters (`digest.as_cid`, the bounded fields of messages), so a typed name is
well formed. `PolicyVersion` orders by incarnation first: after a learner's restart the higher incarnation wins.
"""

from __future__ import annotations

from typing import Annotated, NewType

import msgspec
from msgspec import Meta

PeerId = NewType("PeerId", str)
"""The libp2p peer id as base58 text ("12D3KooW...")."""

PublicKey = NewType("PublicKey", bytes)
"""Raw Ed25519 public key, 32 bytes."""

Digest = NewType("Digest", bytes)
"""The sha2-256 digest of some bytes as sent, 32 bytes."""

SwarmId = NewType("SwarmId", bytes)
"""Digest of the signed genesis envelope, 32 bytes."""

ManifestHash = NewType("ManifestHash", bytes)
"""Digest of a manifest's signed envelope, 32 bytes."""

Cid = NewType("Cid", bytes)
"""CIDv1, raw codec, sha2-256 multihash, binary form, 36 bytes."""

LeaseId = NewType("LeaseId", bytes)
"""16 random bytes, chosen by the learner."""

RecordId = NewType("RecordId", bytes)
"""Digest of a record's signed envelope, 32 bytes."""

CID_BYTES = 36
PUBLIC_KEY_BYTES = 32


class PolicyVersion(msgspec.Struct, frozen=True, order=True, array_like=True, forbid_unknown_fields=True):
    """One set of weights: (incarnation, version).

    `incarnation` counts the learner's starts, from 1; `version` counts training steps, from 0. Order is lexicographic.
    Two manifests with the same name and different hashes are equivocation.
    """

    incarnation: Annotated[int, Meta(ge=0, lt=1 << 53)]
    version: Annotated[int, Meta(ge=0, lt=1 << 53)]

    def __str__(self) -> str:
        return f"{self.incarnation}.{self.version}"


def short(name: bytes | str) -> str:
    """Return a short form of a name, for people: 8 hex digits of bytes, or the last 6 characters of a peer id."""
    return name.hex()[:8] if isinstance(name, bytes) else name[-6:]
