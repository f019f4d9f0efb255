"""Content names: sha2-256 digests, and CIDv1 for chunks.

A chunk's CID is `0x01 0x55 0x12 0x20 || sha2-256(bytes)` (CID version 1, raw codec, sha2-256 multihash): the name any
IPFS tool gives to the same bytes. A chunk has one name for ever, so arrivals commute and blame is exact.
"""

from __future__ import annotations

import hashlib

from protocol.core.errors import Fault, PeerError
from protocol.core.ids import CID_BYTES, Cid, Digest

CID_PREFIX = bytes([0x01, 0x55, 0x12, 0x20])


def digest_of(data: bytes | memoryview) -> Digest:
    """Return sha2-256 of `data`, 32 bytes."""
    return Digest(hashlib.sha256(data).digest())


def cid_of(*parts: bytes | memoryview) -> Cid:
    """Return the CID of a chunk holding exactly `parts`, one behind the other, 36 bytes."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return Cid(CID_PREFIX + digest.digest())


def as_cid(raw: bytes) -> Cid:
    """Return `raw` as a CID; PeerError(MALFORMED) unless it is CIDv1, raw, sha2-256."""
    if len(raw) != CID_BYTES or not raw.startswith(CID_PREFIX):
        raise PeerError(Fault.MALFORMED, f"not a CIDv1 raw sha2-256 content id: {raw[:8].hex()}...")
    return Cid(raw)
