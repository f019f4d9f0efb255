"""Announce the newest version by gossip: its name, and the hash of its manifest.

An announcement is state, not an event. It may be lost, repeated or reordered without harm: a node repairs any loss when
it asks a peer for its newest one. It carries the learner's certificate, so that a node can verify it with the invite
alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from msgspec import Meta

from protocol.core.codec import Bytes32, Count, Message, decode, encode, require_bounds
from protocol.core.envelope import OVERHEAD_BYTES, Kind, open_envelope, seal
from protocol.core.errors import LocalProtocolError
from protocol.core.genesis import MAX_CERTIFICATE_BYTES, Authority, open_certificate
from protocol.core.identity import Keypair
from protocol.core.ids import ManifestHash, PeerId, PolicyVersion, PublicKey, SwarmId
from protocol.core.limits import MAX_ANNOUNCEMENT_BYTES

MAX_PAYLOAD_BYTES = MAX_ANNOUNCEMENT_BYTES - OVERHEAD_BYTES


class Announcement(Message, frozen=True, kw_only=True):
    """The newest version: its name, its manifest's hash and size in bytes, and the bytes of all its files."""

    version: PolicyVersion
    manifest: Bytes32
    manifest_bytes: Count
    total_bytes: Count
    certificate: Annotated[bytes, Meta(max_length=MAX_CERTIFICATE_BYTES)]


@dataclass(frozen=True, kw_only=True)
class SignedAnnouncement:
    """An announcement that was checked: its bytes as sent, its contents, and the end of its certificate's validity."""

    raw: bytes
    signer: PeerId
    version: PolicyVersion
    manifest: ManifestHash
    manifest_bytes: int
    total_bytes: int
    until_ms: int = 0


def topic_of(swarm: SwarmId) -> str:
    """Return the gossip topic of a swarm's announcements."""
    return f"volery/1/{swarm.hex()}/versions"


def announce(learner: Keypair, authority: Authority, announcement: Announcement) -> bytes:
    """Sign an announcement and return its envelope.

    Raises LocalProtocolError if a field is out of bounds, or the envelope could exceed MAX_ANNOUNCEMENT_BYTES.
    """
    payload = encode(require_bounds(announcement))
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise LocalProtocolError(f"an announcement of {len(payload)} bytes, at most {MAX_PAYLOAD_BYTES} fit")
    return seal(learner, authority.swarm, Kind.ANNOUNCEMENT, payload)


def open_announcement(
    raw: bytes, authority: Authority, *, now_ms: int, own: PublicKey | None = None
) -> SignedAnnouncement:
    """Return the announcement in `raw`. Raise PeerError unless a certified learner signed it.

    `own` is the key of the reader, if it is a learner. For an announcement with its own key, the dates of the
    certificate do not matter. For another learner's key (it was replaced, or a standby learner works) they do.
    """
    envelope = open_envelope(raw, kind=Kind.ANNOUNCEMENT, swarm=authority.swarm, limit=MAX_PAYLOAD_BYTES)
    said: Announcement = decode(Announcement, envelope.payload, MAX_PAYLOAD_BYTES)
    if envelope.key != own:
        authority.require_learner(envelope, said.certificate, now_ms)
    return SignedAnnouncement(
        raw=raw,
        signer=envelope.signer,
        version=said.version,
        manifest=ManifestHash(said.manifest),
        manifest_bytes=said.manifest_bytes,
        total_bytes=said.total_bytes,
        until_ms=open_certificate(said.certificate, authority).not_after_ms,
    )
