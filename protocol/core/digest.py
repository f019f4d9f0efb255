"""Compute content names: sha2-256 digests, and CIDv1 for chunks.

A chunk's CID is `0x01 0x55 0x12 0x20 || sha2-256(bytes)` (CID version 1, raw codec, sha2-256 multihash). Any IPFS tool
gives the same name to the same bytes. A chunk keeps its name for ever, so chunks may arrive in any order, and a wrong
chunk is always the fault of its sender.
"""

from __future__ import annotations

import hashlib

from protocol.core.errors import Fault, PeerError
from protocol.core.ids import CID_BYTES, Cid, Digest

CID_PREFIX = bytes([0x01, 0x55, 0x12, 0x20])


def digest_of(data: bytes | memoryview) -> Digest:
    """Return the sha2-256 digest of `data`, 32 bytes."""
    return Digest(hashlib.sha256(data).digest())


def cid_of(*parts: bytes | memoryview) -> Cid:
    """Return the CID, 36 bytes, of a chunk that consists of `parts` in this order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return Cid(CID_PREFIX + digest.digest())


def as_cid(raw: bytes) -> Cid:
    """Return `raw` as a CID. Raise PeerError(MALFORMED) unless it is CIDv1, raw, sha2-256."""
    if len(raw) != CID_BYTES or not raw.startswith(CID_PREFIX):
        raise PeerError(Fault.MALFORMED, f"not a CIDv1 raw sha2-256 content id: {raw[:8].hex()}...")
    return Cid(raw)
