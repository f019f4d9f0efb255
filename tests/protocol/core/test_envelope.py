"""Signed envelopes: golden bytes, agreement with libp2p, and everything that an attacker may try on one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libp2p.crypto.ed25519 import Ed25519PublicKey
from libp2p.peer.envelope import make_unsigned

from protocol.core.codec import decode
from protocol.core.digest import digest_of
from protocol.core.envelope import OVERHEAD_BYTES, Envelope, Kind, open_envelope, read_envelope, seal
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.identity import Keypair, verify
from protocol.core.ids import SwarmId
from tests.support.examples import examples

AUTHOR = Keypair(bytes(range(32)))
SWARM = SwarmId(b"\x8a" * 32)
OTHER_SWARM = SwarmId(b"\x8b" * 32)
SEALED = seal(AUTHOR, SWARM, Kind.LEASE, b"words")


def opened(raw: bytes, kind: Kind = Kind.LEASE, swarm: SwarmId = SWARM, limit: int = 1024) -> Envelope:
    return open_envelope(raw, kind=kind, swarm=swarm, limit=limit)


def fault_of(raw: bytes, **how: Any) -> Fault:
    with pytest.raises(PeerError) as caught:
        opened(raw, **how)
    return caught.value.fault


def test_golden_bytes() -> None:
    expected = bytes.fromhex(
        "95"  # array of 5
        "c420"
        + "8a"
        * 32  # swarm
        + "a5 6c65617365"  # kind: "lease"
        "c420 03a107bff3ce10be1d70dd18e74bc09967e4d6309ba50d5f1ddc8664125531b8"  # key
        "c405 776f726473"  # payload: "words"
        "c440"  # signature, 64 bytes
        "f4e9fce9e36e1f318ffe11be6ad5b91f590b62b95b4373219044f9bc4a0fd066"
        "36f5f6085cf827dd7eb8c32ea9088e0db7cf5b3f90c5c7b19808289c3967d30a"
    )
    assert SEALED.hex() == expected.hex()


def test_golden_signing_input() -> None:
    signed = bytes.fromhex(
        "29"  # 41 bytes of domain:
        "766f6c6572792f312f"
        + "8a"
        * 32  # "volery/1/" and the swarm id
        + "05 6c65617365"  # 5 bytes of payload type: "lease"
        "05 776f726473"  # 5 bytes of payload: "words"
    )
    assert verify(AUTHOR.public, SEALED[-64:], signed)


@given(st.binary(max_size=300), st.sampled_from(Kind), st.text("abcdefghijklmnop", min_size=32, max_size=32))
def test_signing_input_is_that_of_libp2p(payload: bytes, kind: Kind, swarm: str) -> None:
    """libp2p takes its domain as text, so the swarm is one whose id happens to be text."""
    raw = seal(AUTHOR, SwarmId(swarm.encode()), kind, payload)
    unsigned = make_unsigned("volery/1/" + swarm, kind.value.encode(), payload)
    assert Ed25519PublicKey.from_bytes(AUTHOR.public).verify(unsigned, raw[-64:])


@given(st.binary(max_size=70_000), st.sampled_from(Kind))
def test_what_was_sealed_is_what_is_opened(payload: bytes, kind: Kind) -> None:
    raw = seal(AUTHOR, SWARM, kind, payload)
    envelope = opened(raw, kind, limit=len(payload))
    assert (envelope.payload, envelope.signer, envelope.kind) == (payload, AUTHOR.peer_id, kind)
    assert envelope.digest == digest_of(raw)
    assert len(raw) - len(payload) <= OVERHEAD_BYTES


@settings(max_examples=examples(1000), deadline=None)
@given(st.integers(0, len(SEALED) - 1), st.integers(1, 255))
def test_any_changed_byte_is_refused(at: int, flip: int) -> None:
    raw = bytearray(SEALED)
    raw[at] ^= flip
    with pytest.raises(PeerError):
        opened(bytes(raw))


@pytest.mark.parametrize("at", range(len(SEALED)))
def test_a_bit_flipped_anywhere_is_refused(at: int) -> None:
    raw = bytearray(SEALED)
    raw[at] ^= 1
    with pytest.raises(PeerError):
        opened(bytes(raw))
    with pytest.raises(PeerError):
        opened(SEALED[:at])


def test_replay_in_another_swarm_or_as_another_kind_is_refused() -> None:
    assert fault_of(SEALED, swarm=OTHER_SWARM) is Fault.WRONG_SWARM
    assert fault_of(SEALED, kind=Kind.RECORD) is Fault.WRONG_KIND


def test_relabelling_breaks_the_signature() -> None:
    """Swarm and kind are under the signature, not merely beside it."""
    swarm, kind, key, payload, signature = msgspec.msgpack.decode(SEALED)
    elsewhere = msgspec.msgpack.encode([OTHER_SWARM, kind, key, payload, signature])
    assert fault_of(elsewhere, swarm=OTHER_SWARM) is Fault.BAD_SIGNATURE
    renamed = msgspec.msgpack.encode([swarm, "record", key, payload, signature])
    assert fault_of(renamed, kind=Kind.RECORD) is Fault.BAD_SIGNATURE
    usurped = msgspec.msgpack.encode([swarm, kind, Keypair(bytes(32)).public, payload, signature])
    assert fault_of(usurped) is Fault.BAD_SIGNATURE


def test_domain_and_kind_cannot_run_into_each_other() -> None:
    """Length prefixes: moving bytes between type and payload changes what is signed."""
    signed = seal(AUTHOR, SWARM, Kind.RELAY_RECEIPT, b"")
    _, _, key, _, signature = msgspec.msgpack.decode(signed)
    shifted = msgspec.msgpack.encode([SWARM, "relay", key, b"-receipt", signature])
    with pytest.raises(PeerError):
        opened(shifted, Kind.RELAY_RECEIPT)


def reencodings() -> dict[str, bytes]:
    """Other bytes for the same five values: none changes what was signed, each would change the envelope's digest."""
    swarm, kind, key, payload, signature = msgspec.msgpack.decode(SEALED)
    words = SEALED.index(b"\xc4\x05words")
    return {
        "a sixth element": msgspec.msgpack.encode([swarm, kind, key, payload, signature, b"unsigned"]),
        "array16": b"\xdc\x00\x05" + SEALED[1:],
        "array32": b"\xdd\x00\x00\x00\x05" + SEALED[1:],
        "bin16 payload": SEALED[:words] + b"\xc5\x00\x05" + SEALED[words + 2 :],
        "bin32 payload": SEALED[:words] + b"\xc6\x00\x00\x00\x05" + SEALED[words + 2 :],
        "str8 kind": SEALED.replace(b"\xa5lease", b"\xd9\x05lease"),
        "trailing byte": SEALED + b"\xc0",
    }


@pytest.mark.parametrize("name", reencodings())
def test_one_signature_has_one_envelope(name: str) -> None:
    """Otherwise anybody could show two manifests of one name, both validly signed, and have the learner accused."""
    assert fault_of(reencodings()[name]) is Fault.MALFORMED


def test_payload_limit_is_exact() -> None:
    raw = seal(AUTHOR, SWARM, Kind.LEASE, bytes(100))
    assert opened(raw, limit=100).payload == bytes(100)
    assert fault_of(raw, limit=99) is Fault.OVERSIZED


def test_oversize_is_refused_before_parsing() -> None:
    assert fault_of(b"\xc1" * (1024 + OVERHEAD_BYTES + 1)) is Fault.OVERSIZED  # 0xc1 is no MessagePack at all
    assert fault_of(b"\xc1" * (1024 + OVERHEAD_BYTES)) is Fault.MALFORMED


def test_reading_leaves_the_signature_to_the_caller() -> None:
    raw = SEALED[:-1] + bytes([SEALED[-1] ^ 1])
    envelope = read_envelope(raw, kind=Kind.LEASE, swarm=SWARM, limit=1024)
    with pytest.raises(PeerError) as caught:
        envelope.verify_signature()
    assert caught.value.fault is Fault.BAD_SIGNATURE


def test_a_kind_of_a_later_protocol_is_a_wrong_kind() -> None:
    swarm, _, key, payload, signature = msgspec.msgpack.decode(SEALED)
    assert fault_of(msgspec.msgpack.encode([swarm, "sonnet", key, payload, signature])) is Fault.WRONG_KIND


def test_a_swarm_id_of_the_wrong_length_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError):
        seal(AUTHOR, SwarmId(b"short"), Kind.LEASE, b"")


@given(st.binary(max_size=200))
def test_a_newer_writer_is_read_and_its_signature_holds(junk: bytes) -> None:
    """Nothing is encoded again to check a signature, so fields we do not know stay under it."""

    class Note(msgspec.Struct):
        text: str

    newer = msgspec.msgpack.encode({"text": "words", "mood": junk, "ext": {"tone": junk}})
    envelope = opened(seal(AUTHOR, SWARM, Kind.LEASE, newer))
    assert decode(Note, envelope.payload, 1024) == Note(text="words")
