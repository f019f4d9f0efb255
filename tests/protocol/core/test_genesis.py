"""Test who may speak for a swarm: the genesis, learner certificates, and every way in which they are not valid."""

from __future__ import annotations

import msgspec
import pytest

from protocol.core.codec import encode
from protocol.core.digest import digest_of
from protocol.core.envelope import NO_SWARM, Envelope, Kind, open_envelope, seal
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.genesis import (
    MAX_CERTIFICATE_BYTES,
    Authority,
    Genesis,
    LearnerCertificate,
    certify_learner,
    found_swarm,
    learner_of,
    open_certificate,
    read_genesis,
)
from protocol.core.identity import Keypair
from protocol.core.ids import PublicKey, SwarmId
from protocol.core.limits import MAX_NAME_CHARS, PROTOCOL_VERSION

OPERATOR, LEARNER, STRANGER = (Keypair(bytes([n]) * 32) for n in (1, 2, 3))
RAW, SWARM = found_swarm(OPERATOR, name="kites", created_ms=1_700_000_000_000, nonce=bytes(16))
CERTIFICATE = certify_learner(OPERATOR, SWARM, learner=LEARNER.public, not_before_ms=1000, not_after_ms=2000)


def said_by(keypair: Keypair) -> Envelope:
    raw = seal(keypair, SWARM.swarm, Kind.LEASE, b"")
    return open_envelope(raw, kind=Kind.LEASE, swarm=SWARM.swarm, limit=0)


def refusal(certificate: bytes, speaker: Keypair = LEARNER, now_ms: int = 1500) -> Fault:
    with pytest.raises(PeerError) as caught:
        SWARM.require_learner(said_by(speaker), certificate, now_ms)
    return caught.value.fault


def genesis(**changes: object) -> bytes:
    fields = {
        "protocol": PROTOCOL_VERSION,
        "name": "kites",
        "operator": OPERATOR.public,
        "created_ms": 1,
        "nonce": b"n" * 16,
    }
    return msgspec.msgpack.encode(fields | changes)


def test_the_swarm_id_is_the_digest_of_the_signed_genesis() -> None:
    said, authority = read_genesis(RAW)
    assert said == Genesis(
        protocol=PROTOCOL_VERSION, name="kites", operator=OPERATOR.public, created_ms=1_700_000_000_000, nonce=bytes(16)
    )
    assert authority == SWARM == Authority(swarm=SwarmId(digest_of(RAW)), operator=OPERATOR.public)


def test_golden_swarm_id() -> None:
    """Ed25519 is deterministic, so the founding of a swarm can be repeated to the byte anywhere."""
    assert SWARM.swarm.hex() == "2bac312f9563e91bb65e5934fb9086cc36735a30297d77d7f590d49aa4a97f35"


def test_the_nonce_makes_equal_settings_different_swarms() -> None:
    _, other = found_swarm(OPERATOR, name="kites", created_ms=1_700_000_000_000, nonce=b"\1" * 16)
    assert other.swarm != SWARM.swarm


def test_a_genesis_is_signed_by_the_operator_it_names() -> None:
    with pytest.raises(PeerError) as caught:
        read_genesis(seal(STRANGER, NO_SWARM, Kind.GENESIS, genesis()))
    assert caught.value.fault is Fault.UNAUTHORISED


@pytest.mark.parametrize("version", [0, PROTOCOL_VERSION + 1])
def test_another_protocol_version_is_incompatible(version: int) -> None:
    with pytest.raises(PeerError, match=f"protocol {version}") as caught:
        read_genesis(seal(OPERATOR, NO_SWARM, Kind.GENESIS, genesis(protocol=version)))
    assert caught.value.fault is Fault.INCOMPATIBLE


def test_a_genesis_of_a_newer_writer_is_read() -> None:
    said, _ = read_genesis(seal(OPERATOR, NO_SWARM, Kind.GENESIS, genesis(anthem="later", ext={"motto": b"x"})))
    assert said.name == "kites"
    assert said.ext == {"motto": b"x"}


def test_the_longest_name_in_the_widest_script_fits() -> None:
    name = "\U0001d50e" * MAX_NAME_CHARS
    raw, _ = found_swarm(OPERATOR, name=name, created_ms=1, nonce=bytes(16))
    assert read_genesis(raw)[0].name == name


def test_a_name_that_is_too_long_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="name"):
        found_swarm(OPERATOR, name="k" * (MAX_NAME_CHARS + 1), created_ms=1, nonce=bytes(16))


def test_a_certified_learner_may_speak() -> None:
    word = open_certificate(CERTIFICATE, SWARM)
    assert word == LearnerCertificate(learner=LEARNER.public, not_before_ms=1000, not_after_ms=2000)
    assert learner_of(word) == LEARNER.peer_id
    for now_ms in (1000, 1500, 2000):
        SWARM.require_learner(said_by(LEARNER), CERTIFICATE, now_ms)


def test_a_standby_takes_over_with_a_certificate_of_its_own() -> None:
    other = certify_learner(OPERATOR, SWARM, learner=STRANGER.public, not_before_ms=0, not_after_ms=5000)
    SWARM.require_learner(said_by(STRANGER), other, 3000)
    SWARM.require_learner(said_by(LEARNER), CERTIFICATE, 1500)


@pytest.mark.parametrize("now_ms", [0, 999, 2001, 10**12])
def test_a_certificate_holds_in_its_time_only(now_ms: int) -> None:
    assert refusal(CERTIFICATE, now_ms=now_ms) is Fault.UNAUTHORISED


def test_a_certificate_is_not_transferable() -> None:
    assert refusal(CERTIFICATE, speaker=STRANGER) is Fault.UNAUTHORISED
    assert refusal(CERTIFICATE, speaker=OPERATOR) is Fault.UNAUTHORISED


@pytest.mark.parametrize("signer", [LEARNER, STRANGER])
def test_only_the_operator_certifies(signer: Keypair) -> None:
    forged = certify_learner(signer, SWARM, learner=LEARNER.public, not_before_ms=1000, not_after_ms=2000)
    assert refusal(forged) is Fault.UNAUTHORISED


def test_a_certificate_of_another_swarm_of_the_same_operator_is_refused() -> None:
    _, other = found_swarm(OPERATOR, name="kites", created_ms=1, nonce=bytes(16))
    elsewhere = certify_learner(OPERATOR, other, learner=LEARNER.public, not_before_ms=1000, not_after_ms=2000)
    assert refusal(elsewhere) is Fault.WRONG_SWARM


def test_another_word_of_the_operator_is_no_certificate() -> None:
    payload = encode(LearnerCertificate(learner=LEARNER.public, not_before_ms=1000, not_after_ms=2000))
    assert refusal(seal(OPERATOR, SWARM.swarm, Kind.LEASE, payload)) is Fault.WRONG_KIND
    assert refusal(b"") is Fault.MALFORMED


def test_certificates_fit_where_they_ride() -> None:
    latest = 2**53 - 1
    raw = certify_learner(OPERATOR, SWARM, learner=LEARNER.public, not_before_ms=latest, not_after_ms=latest)
    assert len(raw) <= MAX_CERTIFICATE_BYTES
    word = {"learner": LEARNER.public, "not_before_ms": 0, "not_after_ms": latest, "ext": {"x": bytes(200)}}
    assert refusal(seal(OPERATOR, SWARM.swarm, Kind.CERTIFICATE, msgspec.msgpack.encode(word))) is Fault.OVERSIZED


def test_a_date_out_of_bounds_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="not_before_ms"):
        certify_learner(OPERATOR, SWARM, learner=PublicKey(bytes(32)), not_before_ms=-1, not_after_ms=0)
