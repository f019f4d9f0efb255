"""Tallies prove what they count and nothing else; only a certified learner can sign one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.accounting.merkle import MAX_PATH
from protocol.accounting.tally import (
    MAX_LEAF_BYTES,
    MAX_PROOF_BYTES,
    TALLY,
    Proof,
    Tally,
    TrainedRecord,
    check_proof,
    open_tally,
    proofs_for,
    sign_tally,
    tally_of,
    tree_of,
)
from protocol.core.codec import encode
from protocol.core.digest import digest_of
from protocol.core.envelope import Kind, seal
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.genesis import certify_learner, found_swarm
from protocol.core.identity import Keypair
from protocol.core.ids import PolicyVersion
from protocol.core.limits import MAX_EXTENSION_BYTES
from protocol.versions.manifest import Manifest, sign_manifest

OPERATOR, LEARNER, PEER, STRANGER = (Keypair(bytes([n]) * 32) for n in (1, 2, 3, 4))
_, SWARM = found_swarm(OPERATOR, name="kites", created_ms=0, nonce=bytes(16))
CERTIFICATE = certify_learner(OPERATOR, SWARM, learner=LEARNER.public, not_before_ms=0, not_after_ms=1000)
V7 = PolicyVersion(2, 7)


def trained(number: int, step: int = 7, incarnation: int = 2) -> TrainedRecord:
    return TrainedRecord(
        digest_of(b"%d" % number), PEER.peer_id, number.to_bytes(16, "big"), number, PolicyVersion(incarnation, step)
    )


def tally_for(records: list[TrainedRecord], **changes: Any) -> Tally:
    tree = tree_of(records)[1]
    settings: dict[str, Any] = {
        "version": V7, "after": 5, "records": tree.size, "root": tree.root, "issued_ms": 500,
        "certificate": CERTIFICATE,
    }  # fmt: skip
    return Tally(**settings | changes)


def fault_of(proof: Proof, tally: Tally) -> Fault:
    with pytest.raises(PeerError) as caught:
        check_proof(proof, tally)
    return caught.value.fault


@given(st.lists(st.tuples(st.integers(0, 99), st.sampled_from([6, 7])), unique_by=lambda one: one[0], max_size=30))
def test_what_is_counted_is_proved_in_whatever_order_it_was_read(drawn: list[tuple[int, int]]) -> None:
    records = [trained(number, step) for number, step in drawn]
    leaves, tree = tree_of(records)
    assert tree.root == tree_of(reversed(records))[1].root
    tally = open_tally(sign_tally(LEARNER, SWARM, tally_for(records)), SWARM)
    found = [check_proof(proof, tally) for proof in proofs_for(leaves, tree, range(tree.size))]
    assert found == sorted(records, key=lambda one: (one.version.version, one.record))
    for proof in proofs_for(leaves, tree, range(tree.size)):
        other = msgspec.structs.replace(proof, leaf=encode(trained(100)))
        assert fault_of(other, tally) is Fault.BROKEN_PROMISE


def test_a_version_that_nothing_trained_counts_nothing() -> None:
    tally = open_tally(sign_tally(LEARNER, SWARM, tally_for([], after=7)), SWARM)
    assert tally.records == 0
    assert fault_of(Proof(leaf=encode(trained(1)), place=0, path=[]), tally) is Fault.BROKEN_PROMISE


@pytest.mark.parametrize("step", [(2, 5), (2, 8), (3, 7), (1, 5)])
def test_a_step_that_the_tally_does_not_speak_of_proves_nothing(step: tuple[int, int]) -> None:
    """The learner has signed the root, so only it could have put such a leaf there: it contradicts itself."""
    record = trained(1, step[1], step[0])
    assert fault_of(Proof(leaf=encode(record), place=0, path=[]), tally_for([record])) is Fault.BROKEN_PROMISE
    assert check_proof(Proof(leaf=encode(trained(1, 6, 1)), place=0, path=[]), tally_for([trained(1, 6, 1)]))


def test_a_leaf_whose_peer_is_none_is_malformed() -> None:
    record = msgspec.structs.replace(trained(1), peer="1" * 52)
    assert fault_of(Proof(leaf=encode(record), place=0, path=[]), tally_for([record])) is Fault.MALFORMED


def refused(raw: bytes) -> Fault:
    with pytest.raises(PeerError) as caught:
        open_tally(raw, SWARM)
    return caught.value.fault


def test_only_a_learner_that_was_certified_then_may_tell() -> None:
    tally = tally_for([trained(1)])
    assert refused(seal(STRANGER, SWARM.swarm, Kind.TALLY, encode(tally))) is Fault.UNAUTHORISED
    late = msgspec.structs.replace(tally, issued_ms=1001)
    assert refused(seal(LEARNER, SWARM.swarm, Kind.TALLY, encode(late))) is Fault.UNAUTHORISED
    assert refused(seal(LEARNER, SWARM.swarm, Kind.RECEIPT, encode(tally))) is Fault.WRONG_KIND
    raw = sign_tally(LEARNER, SWARM, tally)
    assert refused(raw[:-1] + bytes([raw[-1] ^ 1])) is Fault.BAD_SIGNATURE
    with pytest.raises(LocalProtocolError):
        sign_tally(LEARNER, SWARM, late)


def test_steps_that_end_before_they_begin_are_malformed() -> None:
    bad = tally_for([], after=8)
    assert refused(seal(LEARNER, SWARM.swarm, Kind.TALLY, encode(bad))) is Fault.MALFORMED
    with pytest.raises(LocalProtocolError):
        sign_tally(LEARNER, SWARM, bad)


def test_the_largest_fit_their_limits() -> None:
    """A manifest grows by the same few hundred bytes for every batch."""
    largest = PolicyVersion(2**53 - 1, 2**53 - 1)
    tally = msgspec.structs.replace(tally_for([]), version=largest, after=2**53 - 1, records=2**53 - 1)
    assert len(sign_tally(LEARNER, SWARM, tally)) < 700 < MAX_EXTENSION_BYTES
    leaf = encode(TrainedRecord(bytes(32), PEER.peer_id, bytes(16), 2**53 - 1, largest))
    assert len(leaf) <= MAX_LEAF_BYTES
    proof = Proof(leaf=bytes(MAX_LEAF_BYTES), place=2**53 - 1, path=[bytes(32)] * MAX_PATH)
    assert len(encode(proof)) <= MAX_PROOF_BYTES


def test_a_manifest_carries_it() -> None:
    raw = sign_tally(LEARNER, SWARM, tally_for([trained(1)]))
    manifest = Manifest(
        version=V7, created_ms=500, certificate=CERTIFICATE, files=[], chunks=[], tensors=[], ext={TALLY: raw}
    )
    signed = sign_manifest(LEARNER, SWARM, manifest)
    assert tally_of(signed.manifest) == raw == signed.manifest.ext[TALLY]
    assert tally_of(msgspec.structs.replace(manifest, ext={})) is None
