"""Define tallies, the learner's signed statements of the records that a version was trained on, and proofs of a record.

A tally is small for any batch: the count and the Merkle root of the records that the training steps since the previous
version consumed. It travels inside the manifest, as the extension TALLY, and has a signature of its own, so that a
proof does not need the manifest, which may have megabytes. A tally is only the learner's statement of what it trained
on, but the learner cannot take it back.

Invariants, after `open_tally` and `check_proof`:

- The operator certified the signer.
- The record is one of those that the tally counts.
- The training step that the record names is one of those that the tally covers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from protocol.accounting.merkle import MAX_PATH, MerkleTree, is_in_tree
from protocol.core.codec import Bytes16, Bytes32, Count, Message, Millis, PeerText, decode, encode
from protocol.core.envelope import OVERHEAD_BYTES, Kind, Signable, open_envelope, sign
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.genesis import MAX_CERTIFICATE_BYTES, Authority
from protocol.core.identity import Keypair, public_key_of
from protocol.core.ids import PolicyVersion
from protocol.core.limits import MAX_EXTENSION_BYTES
from protocol.versions.manifest import Manifest

TALLY = "volery.tally"
"""The extension of Manifest that contains the envelope of a Tally."""

MAX_TALLY_BYTES = MAX_CERTIFICATE_BYTES + 512
"""Size of the payload: numbers, a hash and the certificate."""

MAX_LEAF_BYTES = 256
"""Size of one entry of the tree. Real ones have 108 to 140 bytes."""


class TrainedRecord(msgspec.Struct, frozen=True, array_like=True):
    """One record that a training step consumed: its author, its lease and index, and the version that the step made."""

    record: Bytes32
    peer: PeerText
    lease: Bytes16
    index: Count
    version: PolicyVersion


class Tally(Signable, frozen=True, kw_only=True):
    """The number and the Merkle root of the records consumed by the training steps after `after`, up to `version`.

    `after` is the step of the version that the manifest names as its predecessor, or that of `version` itself if it
    names none.
    """

    KIND: ClassVar[Kind] = Kind.TALLY

    version: PolicyVersion
    after: Count
    records: Count
    root: Bytes32
    issued_ms: Millis
    certificate: Annotated[bytes, Meta(max_length=MAX_CERTIFICATE_BYTES)]


class Proof(Message, frozen=True, kw_only=True):
    """Evidence that `leaf`, the bytes of a TrainedRecord, is number `place` of those that a tally counts."""

    leaf: Annotated[bytes, Meta(min_length=1, max_length=MAX_LEAF_BYTES)]
    place: Count
    path: Annotated[list[Bytes32], Meta(max_length=MAX_PATH)]


MAX_PROOF_BYTES = MAX_LEAF_BYTES + 34 * MAX_PATH + 64


def in_order(trained: Iterable[TrainedRecord]) -> list[TrainedRecord]:
    """Return the records of a tally in the order of its tree: by step, then by record id."""
    return sorted(trained, key=lambda one: (one.version.version, one.record))


def tree_of(trained: Iterable[TrainedRecord]) -> tuple[list[bytes], MerkleTree]:
    """Return the leaves in their order, and their tree."""
    leaves = [encode(one) for one in in_order(trained)]
    return leaves, MerkleTree(leaves)


def sign_tally(learner: Keypair, authority: Authority, tally: Tally) -> bytes:
    """Return the envelope of `tally`. Raise LocalProtocolError if no reader would accept it."""
    raw = sign(learner, authority.swarm, tally)
    try:
        open_tally(raw, authority)
    except PeerError as error:
        raise LocalProtocolError(error.detail) from error
    return raw


def open_tally(raw: bytes, authority: Authority) -> Tally:
    """Return the tally in `raw`.

    Raises PeerError unless a key that was certified at its date signed it, and its steps are in order.
    """
    envelope = open_envelope(raw, kind=Kind.TALLY, swarm=authority.swarm, limit=MAX_TALLY_BYTES)
    tally: Tally = decode(Tally, envelope.payload, MAX_TALLY_BYTES)
    authority.require_learner(envelope, tally.certificate, tally.issued_ms)
    if tally.after > tally.version.version:
        raise PeerError(Fault.MALFORMED, f"tally: steps after {tally.after} up to {tally.version.version}")
    return tally


def tally_of(manifest: Manifest) -> bytes | None:
    """Return the envelope of the manifest's tally, not yet opened; None if it has no tally."""
    return manifest.ext.get(TALLY)


def check_proof(proof: Proof, tally: Tally) -> TrainedRecord:
    """Return the record that `tally` counts according to `proof`.

    Raises PeerError: BROKEN_PROMISE if the proof is wrong, MALFORMED if its leaf is no TrainedRecord.
    """
    leaf: TrainedRecord = decode(TrainedRecord, proof.leaf, MAX_LEAF_BYTES)
    public_key_of(leaf.peer)
    if not is_in_tree(proof.leaf, proof.place, proof.path, size=tally.records, root=tally.root):
        raise PeerError(
            Fault.BROKEN_PROMISE,
            f"the path does not lead from record {leaf.record.hex()[:8]} to the root of version {tally.version}",
        )
    if not (tally.after < leaf.version.version <= tally.version.version and leaf.version <= tally.version):
        raise PeerError(
            Fault.BROKEN_PROMISE,
            f"the tally of version {tally.version} covers the steps after {tally.after}, but the record names the step"
            f" that made {leaf.version}",
        )
    return leaf


def proofs_for(leaves: Sequence[bytes], tree: MerkleTree, places: Iterable[int]) -> list[Proof]:
    """Return the proofs of the leaves at `places`."""
    return [Proof(leaf=leaves[place], place=place, path=list(tree.path(place))) for place in places]


assert MAX_TALLY_BYTES + OVERHEAD_BYTES <= MAX_EXTENSION_BYTES
