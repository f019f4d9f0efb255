"""Announcements: small, signed by a certified learner, and judged with nothing but the invite."""

from __future__ import annotations

import msgspec
import pytest

from protocol.core.envelope import Kind, seal
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.genesis import certify_learner, found_swarm
from protocol.core.identity import Keypair
from protocol.core.ids import PolicyVersion, SwarmId
from protocol.core.limits import MAX_ANNOUNCEMENT_BYTES
from protocol.versions.announcement import Announcement, announce, open_announcement, topic_of

OPERATOR, LEARNER, STRANGER = (Keypair(bytes([n]) * 32) for n in (1, 2, 3))
_, SWARM = found_swarm(OPERATOR, name="kites", created_ms=0, nonce=bytes(16))
LAST_MS = 2**53 - 1
CERTIFICATE = certify_learner(OPERATOR, SWARM, learner=LEARNER.public, not_before_ms=0, not_after_ms=LAST_MS)
NEWEST = Announcement(
    version=PolicyVersion(2, 700),
    manifest=b"\x8a" * 32,
    manifest_bytes=70_000,
    total_bytes=8_000_000_000,
    certificate=CERTIFICATE,
)


def fault_of(raw: bytes, now_ms: int = 5) -> Fault:
    with pytest.raises(PeerError) as caught:
        open_announcement(raw, SWARM, now_ms=now_ms)
    return caught.value.fault


def test_what_was_announced_is_what_is_read() -> None:
    raw = announce(LEARNER, SWARM, NEWEST)
    read = open_announcement(raw, SWARM, now_ms=5)
    assert (read.raw, read.signer) == (raw, LEARNER.peer_id)
    assert (read.version, read.manifest) == (NEWEST.version, NEWEST.manifest)
    assert (read.manifest_bytes, read.total_bytes) == (70_000, 8_000_000_000)


def test_the_largest_values_fit_in_one_gossip_message() -> None:
    huge = msgspec.structs.replace(
        NEWEST, version=PolicyVersion(LAST_MS, LAST_MS), manifest_bytes=LAST_MS, total_bytes=LAST_MS
    )
    assert len(announce(LEARNER, SWARM, huge)) <= MAX_ANNOUNCEMENT_BYTES


def test_what_would_not_fit_is_our_own_mistake() -> None:
    with pytest.raises(LocalProtocolError, match="fit"):
        announce(LEARNER, SWARM, msgspec.structs.replace(NEWEST, ext={"poem": bytes(600)}))
    with pytest.raises(LocalProtocolError, match="manifest"):
        announce(LEARNER, SWARM, msgspec.structs.replace(NEWEST, manifest=b"short"))


def test_oversize_is_refused_before_parsing() -> None:
    assert fault_of(b"\xc1" * (MAX_ANNOUNCEMENT_BYTES + 1)) is Fault.OVERSIZED
    assert fault_of(b"\xc1" * MAX_ANNOUNCEMENT_BYTES) is Fault.MALFORMED


def test_only_a_certified_learner_announces() -> None:
    assert fault_of(announce(STRANGER, SWARM, NEWEST)) is Fault.UNAUTHORISED
    assert fault_of(announce(LEARNER, SWARM, NEWEST), now_ms=LAST_MS + 1) is Fault.UNAUTHORISED


def test_an_announcement_of_another_swarm_is_refused() -> None:
    _, other = found_swarm(OPERATOR, name="kites", created_ms=1, nonce=bytes(16))
    assert fault_of(announce(LEARNER, other, NEWEST)) is Fault.WRONG_SWARM


def test_a_newer_writer_is_read() -> None:
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(NEWEST)) | {"patches": [1, 2], "ext": {"anchor": b"x"}}
    raw = seal(LEARNER, SWARM.swarm, Kind.ANNOUNCEMENT, msgspec.msgpack.encode(fields))
    assert open_announcement(raw, SWARM, now_ms=5).version == NEWEST.version


def test_topic() -> None:
    assert topic_of(SwarmId(b"\x8a" * 32)) == "volery/1/" + "8a" * 32 + "/versions"
