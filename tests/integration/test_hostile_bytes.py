"""Feed hostile bytes to every reader of peers' bytes: it returns a value that keeps its promises, or a named refusal.

There are three kinds of input for every entry point: noise, valid bytes with damage, and payloads damaged before they
were signed. The last are damaged byte by byte and value by value, as a hostile but properly keyed peer would send them,
since damage rarely survives a signature.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.accounting.claims import CostClaim
from protocol.accounting.credit_note import CreditNote, RelayShare, open_credit_note
from protocol.accounting.relay_receipt import RelayReceipt, open_relay_receipt
from protocol.accounting.reputation import DAY_MS, ObservedDay
from protocol.accounting.reputation_note import ReputationNote, open_reputation_note, reputation_note
from protocol.accounting.tally import Proof, Tally, TrainedRecord, check_proof, open_tally, proofs_for, tree_of
from protocol.core.codec import decode, encode, pack_logprobs, pack_tokens, unpack_logprobs, unpack_tokens
from protocol.core.digest import as_cid, cid_of
from protocol.core.envelope import NO_SWARM, Kind, open_envelope, read_envelope, seal
from protocol.core.errors import Fault, PeerError
from protocol.core.genesis import (
    Genesis,
    LearnerCertificate,
    certify_learner,
    found_swarm,
    open_certificate,
    read_genesis,
)
from protocol.core.identity import Keypair
from protocol.core.ids import PolicyVersion, SwarmId
from protocol.core.invite import Invite, InviteError, read_invite, write_invite
from protocol.core.limits import PROTOCOL_VERSION
from protocol.versions.announcement import Announcement, open_announcement
from protocol.versions.exchange import Answer, ChunkAnswer, ChunkRequest, ExchangeFrame, Have, Question, Request, Want
from protocol.versions.manifest import (
    ChunkRef,
    FileEntry,
    Manifest,
    PatchEntry,
    TensorEntry,
    open_manifest,
    require_consistent,
)
from protocol.work import (
    Delivery,
    FromLearner,
    FromNode,
    Lease,
    Receipt,
    RolloutRecord,
    Rule,
    Sampler,
    SignedRecord,
    Span,
    Timing,
    Verdict,
    open_lease,
    open_receipt,
    read_record,
)
from tests.support.examples import examples

OPERATOR, LEARNER, AUTHOR = (Keypair(bytes([n]) * 32) for n in (1, 2, 3))
GENESIS, SWARM = found_swarm(OPERATOR, name="kites", created_ms=0, nonce=bytes(16))
CERTIFICATE = certify_learner(OPERATOR, SWARM, learner=LEARNER.public, not_before_ms=0, not_after_ms=10**12)
VERSION, HASH, NAME = PolicyVersion(1, 7), b"\x8a" * 32, b"\x1e" * 16


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One entry point: its reader, a payload that it accepts, and who signs it in which envelope."""

    read: Callable[[bytes], Any]
    payload: msgspec.Struct
    signer: Keypair
    kind: Kind
    swarm: SwarmId = SWARM.swarm

    def seal(self, payload: bytes) -> bytes:
        return seal(self.signer, self.swarm, self.kind, payload)


SIGNED: dict[str, Entry] = {
    "genesis": Entry(
        read=read_genesis,
        payload=Genesis(
            protocol=PROTOCOL_VERSION, name="kites", operator=OPERATOR.public, created_ms=0, nonce=bytes(16)
        ),
        signer=OPERATOR,
        kind=Kind.GENESIS,
        swarm=NO_SWARM,
    ),
    "certificate": Entry(
        read=lambda raw: open_certificate(raw, SWARM),
        payload=LearnerCertificate(learner=LEARNER.public, not_before_ms=0, not_after_ms=9),
        signer=OPERATOR,
        kind=Kind.CERTIFICATE,
    ),
    "manifest": Entry(
        read=lambda raw: open_manifest(raw, SWARM, now_ms=5),
        payload=Manifest(
            version=VERSION,
            created_ms=5,
            certificate=CERTIFICATE,
            files=[FileEntry("model.safetensors", 8, [0]), FileEntry("config.json", 2, [1])],
            chunks=[ChunkRef(cid_of(b"w" * 8), 8), ChunkRef(cid_of(b"{}"), 2)],
            tensors=[TensorEntry("w", "F16", [2, 2], 0, 0, 8)],
            patches=[PatchEntry(HASH, 2, [1])],
        ),
        signer=LEARNER,
        kind=Kind.MANIFEST,
    ),
    "announcement": Entry(
        read=lambda raw: open_announcement(raw, SWARM, now_ms=5),
        payload=Announcement(version=VERSION, manifest=HASH, manifest_bytes=9, total_bytes=9, certificate=CERTIFICATE),
        signer=LEARNER,
        kind=Kind.ANNOUNCEMENT,
    ),
    "lease": Entry(
        read=lambda raw: open_lease(raw, SWARM.swarm, learner=LEARNER.peer_id),
        payload=Lease(
            id=NAME,
            peer=AUTHOR.peer_id,
            task="reversal",
            prompt=pack_tokens([1]),
            seeds=[1, 2],
            sampler=Sampler(temperature=0.5),
            stop_ids=[2],
            max_new_tokens=8,
            minimum=VERSION,
            issued_ms=0,
            deadline_ms=9,
        ),
        signer=LEARNER,
        kind=Kind.LEASE,
    ),
    "record": Entry(
        read=lambda raw: read_record(raw, SWARM.swarm),
        payload=RolloutRecord(
            lease=NAME,
            index=0,
            tokens=pack_tokens([1, 2]),
            logprobs=pack_logprobs([-1.0, -2.0]),
            spans=[Span(0, 1, VERSION, HASH), Span(1, 2, VERSION, HASH)],
            sampler=Sampler(),
            timing=Timing(started_ms=1, generation_ms=2),
            cost=CostClaim(engine_s=0.5),
            reward=1.0,
        ),
        signer=AUTHOR,
        kind=Kind.RECORD,
    ),
    "receipt": Entry(
        read=lambda raw: open_receipt(raw, SWARM),
        payload=Receipt(
            lease=NAME,
            peer=AUTHOR.peer_id,
            version=VERSION,
            issued_ms=5,
            tokens=2,
            verdicts=[Verdict(record=HASH, index=0, rule=Rule.STALE, reward=0.5, detail="x")],
            certificate=CERTIFICATE,
        ),
        signer=LEARNER,
        kind=Kind.RECEIPT,
    ),
    "relay receipt": Entry(
        read=lambda raw: open_relay_receipt(raw, SWARM.swarm, receiver=AUTHOR.peer_id),
        payload=RelayReceipt(manifest=HASH, relays=[LEARNER.peer_id, OPERATOR.peer_id], first=3, givers=b"\1\0\2"),
        signer=AUTHOR,
        kind=Kind.RELAY_RECEIPT,
    ),
    "credit note": Entry(
        read=lambda raw: open_credit_note(raw, SWARM),
        payload=CreditNote(
            receipt=HASH,
            manifest=HASH,
            receiver=AUTHOR.peer_id,
            shares=[RelayShare(OPERATOR.peer_id, 9)],
            issued_ms=5,
            certificate=CERTIFICATE,
        ),
        signer=LEARNER,
        kind=Kind.CREDIT_NOTE,
    ),
    "tally": Entry(
        read=lambda raw: open_tally(raw, SWARM),
        payload=Tally(version=VERSION, after=5, records=3, root=HASH, issued_ms=5, certificate=CERTIFICATE),
        signer=LEARNER,
        kind=Kind.TALLY,
    ),
    "reputation note": Entry(
        read=lambda raw: open_reputation_note(raw, SWARM),
        payload=reputation_note(
            peer=AUTHOR.peer_id,
            day=5,
            days=[ObservedDay(day=4, leases_in_time=9, leases_failed=1), ObservedDay(day=5, audits_failed=1)],
            banned="",
            issued_ms=6 * DAY_MS,
            certificate=CERTIFICATE,
        ),
        signer=LEARNER,
        kind=Kind.REPUTATION,
    ),
}

UNIONS: list[Any] = [Question, Answer, Want, ExchangeFrame, ChunkRequest, ChunkAnswer, FromNode, FromLearner]


def union_reader(union: Any) -> Callable[[bytes], Any]:
    return lambda raw: decode(union, raw, 4096)


READERS: dict[str, Callable[[bytes], Any]] = {
    **{name: entry.read for name, entry in SIGNED.items()},
    "read_envelope": lambda raw: read_envelope(raw, kind=Kind.LEASE, swarm=SWARM.swarm, limit=4096),
    "open_envelope": lambda raw: open_envelope(raw, kind=Kind.RECORD, swarm=SWARM.swarm, limit=4096),
    "cid": as_cid,
    "tokens": unpack_tokens,
    "logprobs": unpack_logprobs,
    **{f"union {n}": union_reader(union) for n, union in enumerate(UNIONS)},
}

VALID = [entry.seal(encode(entry.payload)) for entry in SIGNED.values()]
FRAMES = [
    encode(frame)
    for frame in (Have(manifest=HASH, bitmap=b"\1"), Request(cid=cid_of(b"")), Delivery(lease=NAME, records=[b"x"]))
]
JUNK: list[Any] = [
    None, True, -1, 0, 1, 2**31, 2**53, 2**63, 2**64 - 1, float("nan"), float("inf"), -1.5, "", "x" * 600, "\0", "../x",
    b"", b"\0", b"\0" * 31, b"\0" * 33, b"\xff" * 36, [], [[]], [0] * 70, {},
    {"type": "have"}, {"": None}, [1, [2, [3]]],
]  # fmt: skip

many = settings(max_examples=examples(1500), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def damage(draw: st.DrawFn, raw: bytes) -> bytes:
    """Draw `raw` with one to four bytes or stretches changed, inserted, removed or cut off."""
    out = bytearray(raw)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(out)))
        new = draw(st.binary(max_size=5))
        out[at : at + draw(st.sampled_from([0, 1, 1, 1, 4, len(out)]))] = new
    return bytes(out)


@st.composite
def distortion(draw: st.DrawFn, message: msgspec.Struct) -> bytes:
    """Draw the bytes of `message` with one to three values, anywhere inside, replaced by values of other kinds and
    sizes.
    """
    tree = msgspec.msgpack.decode(encode(message))
    for _ in range(draw(st.integers(1, 3))):
        node: Any = tree
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if isinstance(node[key], dict | list) and draw(st.booleans()):
                node = node[key]
                continue
            node[key] = deepcopy(draw(st.sampled_from(JUNK)))
            break
    return msgspec.msgpack.encode(tree)


def require_promise(value: Any) -> None:
    """Check the promises of a reader about a value that it returned."""
    match value:
        case SignedRecord():
            assert len(value.tokens) == len(value.logprobs) > 0
            edges = [(span.start, span.end) for span in value.record.spans]
            assert edges[0][0] == 0
            assert edges[-1][1] == len(value.tokens)
            assert all(one[1] == two[0] for one, two in pairwise(edges))
        case Receipt() | Lease():
            assert decode(type(value), encode(value), 1 << 20) == value
        case RelayReceipt():
            givers = value.by_chunk()
            assert set(givers.values()) <= set(value.relays)
            assert all(0 <= chunk - value.first < len(value.givers) for chunk in givers)
        case CreditNote():
            relays = {share.peer for share in value.shares}
            assert len(relays) == len(value.shares)
            assert value.receiver not in relays
        case Tally():
            assert value.after <= value.version.version
        case ReputationNote():
            assert value.band is value.reputation.band
            assert abs(value.score - 1000 * value.reputation.score) <= 2
        case _ if hasattr(value, "manifest") and isinstance(value.manifest, Manifest):
            require_consistent(value.manifest)


def offer(read: Callable[[bytes], Any], raw: bytes) -> Fault | None:
    """Hand `raw` to a reader; an exception other than PeerError fails the test."""
    try:
        value = read(raw)
    except PeerError as error:
        return error.fault
    require_promise(value)
    return None


@pytest.mark.parametrize("name", SIGNED)
def test_the_undamaged_bytes_are_accepted(name: str) -> None:
    """Otherwise the other tests would show nothing."""
    entry = SIGNED[name]
    assert offer(entry.read, entry.seal(encode(entry.payload))) is None


@many
@given(st.sampled_from(sorted(READERS)), st.binary(max_size=300))
def test_noise(name: str, raw: bytes) -> None:
    offer(READERS[name], raw)


@many
@given(st.sampled_from(sorted(READERS)), st.sampled_from(VALID + FRAMES).flatmap(damage))
def test_damaged_messages(name: str, raw: bytes) -> None:
    offer(READERS[name], raw)


@many
@given(st.sampled_from(sorted(SIGNED)), st.data())
def test_damaged_envelopes_are_always_refused(name: str, data: st.DataObject) -> None:
    entry = SIGNED[name]
    whole = entry.seal(encode(entry.payload))
    raw = data.draw(damage(whole))
    if name == "record":  # Its reader leaves the signature for later.
        fault = offer(lambda raw: read_record(raw, SWARM.swarm).envelope.verify_signature(), raw)
    else:
        fault = offer(entry.read, raw)
    assert (fault is None) == (raw == whole)


@many
@given(st.sampled_from(sorted(SIGNED)), st.data())
def test_damage_before_signing(name: str, data: st.DataObject) -> None:
    entry = SIGNED[name]
    offer(entry.read, entry.seal(data.draw(damage(encode(entry.payload)))))


@many
@given(st.sampled_from(sorted(SIGNED)), st.data())
def test_distorted_values_under_a_good_signature(name: str, data: st.DataObject) -> None:
    entry = SIGNED[name]
    offer(entry.read, entry.seal(data.draw(distortion(entry.payload))))


INVITE = Invite(operator=OPERATOR.public, swarm=SWARM.swarm, addresses=["/ip4/192.0.2.1/tcp/1"], name="kites")


@settings(max_examples=examples(800), deadline=None)
@given(
    st.one_of(
        st.text(max_size=60),
        st.text(max_size=60).map("volery1".__add__),
        damage(write_invite(INVITE).encode()).map(lambda raw: raw.decode("latin1")),
    )
)
def test_damaged_invites(text: str) -> None:
    try:
        invite = read_invite(text, now_ms=0)
    except InviteError:
        return
    assert invite == INVITE


TRAINED = [TrainedRecord(HASH[:-1] + bytes([n]), AUTHOR.peer_id, NAME, n, VERSION) for n in range(3)]
LEAVES, TREE = tree_of(TRAINED)
COUNTED = Tally(version=VERSION, after=5, records=3, root=TREE.root, issued_ms=5, certificate=CERTIFICATE)


@many
@given(st.integers(0, 2), st.data())
def test_damaged_proofs_prove_nothing(place: int, data: st.DataObject) -> None:
    (proof,) = proofs_for(LEAVES, TREE, [place])
    raw = data.draw(damage(encode(proof)) | distortion(proof))
    try:
        read: Proof = decode(Proof, raw, 4096)
        found = check_proof(read, COUNTED)
    except PeerError:
        return
    assert (found, read.leaf, read.path) == (TRAINED[place], proof.leaf, proof.path)
