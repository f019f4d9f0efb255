"""Tallies: the learner's signed word on which records a version was trained on, and proofs that one of them was.

A tally is small whatever the batch: a count and the Merkle root of the records that the training steps since the
version before consumed. It travels inside the manifest, as the extension TALLY, and stands alone under a signature of
its own, so that a proof needs no manifest, which may have megabytes. What always holds after `proven`: the operator
stands behind the signer, the record is one of those that the tally counts, and the step that it names is one of those
that the tally speaks of. The learner's word is all that this is: it says what went into the steps, and cannot take that
back.
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
"""The extension of Manifest: the envelope of a Tally."""

MAX_TALLY_BYTES = MAX_CERTIFICATE_BYTES + 512
"""Payload: numbers, a hash and the certificate."""

MAX_LEAF_BYTES = 256
"""One entry of the tree has 108 to 140 bytes."""


class TrainedRecord(msgspec.Struct, frozen=True, array_like=True):
    """One record that a training step consumed: whose it is, what it answers, and the version that the step made."""

    record: Bytes32
    peer: PeerText
    lease: Bytes16
    index: Count
    version: PolicyVersion


class Tally(Signable, frozen=True, kw_only=True):
    """What the training steps after step `after`, up to that of `version`, consumed: how many records, and their root.

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
    """That `leaf`, the bytes of a TrainedRecord, is number `place` of those that a tally counts."""

    leaf: Annotated[bytes, Meta(min_length=1, max_length=MAX_LEAF_BYTES)]
    place: Count
    path: Annotated[list[Bytes32], Meta(max_length=MAX_PATH)]


MAX_PROOF_BYTES = MAX_LEAF_BYTES + 34 * MAX_PATH + 64


def in_order(trained: Iterable[TrainedRecord]) -> list[TrainedRecord]:
    """The records of a tally as its tree has them: by step, then by record id."""
    return sorted(trained, key=lambda one: (one.version.version, one.record))


def tree_of(trained: Iterable[TrainedRecord]) -> tuple[list[bytes], MerkleTree]:
    """The leaves in their order, and their tree."""
    leaves = [encode(one) for one in in_order(trained)]
    return leaves, MerkleTree(leaves)


def sign_tally(learner: Keypair, authority: Authority, tally: Tally) -> bytes:
    """Return the envelope of `tally`; LocalProtocolError when nobody would accept it."""
    raw = sign(learner, authority.swarm, tally)
    try:
        open_tally(raw, authority)
    except PeerError as error:
        raise LocalProtocolError(error.detail) from error
    return raw


def open_tally(raw: bytes, authority: Authority) -> Tally:
    """Return the tally in `raw`; PeerError unless a key certified at its date signed it, and its steps are in order."""
    envelope = open_envelope(raw, kind=Kind.TALLY, swarm=authority.swarm, limit=MAX_TALLY_BYTES)
    tally: Tally = decode(Tally, envelope.payload, MAX_TALLY_BYTES)
    authority.require_learner(envelope, tally.certificate, tally.issued_ms)
    if tally.after > tally.version.version:
        raise PeerError(Fault.MALFORMED, f"tally: steps after {tally.after} up to {tally.version.version}")
    return tally


def tally_of(manifest: Manifest) -> bytes | None:
    """The envelope that the manifest carries, unopened; None if it carries none."""
    return manifest.ext.get(TALLY)


def check_proof(proof: Proof, tally: Tally) -> TrainedRecord:
    """Return the record of which `proof` says that `tally` counts it; PeerError(BROKEN_PROMISE) when it proves nothing,
    MALFORMED when its leaf is no TrainedRecord.
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
            f"the tally of version {tally.version} speaks of the steps after {tally.after}, the record of the step"
            f" that made {leaf.version}",
        )
    return leaf


def proofs_for(leaves: Sequence[bytes], tree: MerkleTree, places: Iterable[int]) -> list[Proof]:
    """The proofs of the leaves at `places`."""
    return [Proof(leaf=leaves[place], place=place, path=list(tree.path(place))) for place in places]


assert MAX_TALLY_BYTES + OVERHEAD_BYTES <= MAX_EXTENSION_BYTES
