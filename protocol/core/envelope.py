"""Sign messages and check their envelopes: which key signed which message, in which swarm.

An envelope is the MessagePack array `[swarm, kind, key, payload, signature]`. The signature covers the libp2p
signed-envelope input (libp2p RFC 0002): `len(domain) domain len(type) type len(payload) payload`, lengths as unsigned
varints, with the domain `volery/1/` || swarm id and the kind as the payload type.

Manifests, records and swarms are named by the digest of their envelope. If a signed payload had several valid
envelopes, somebody without the signer's key could make one statement look like two (equivocation). So a reader accepts
the array in its shortest encoding only.

Invariants:

- A payload that was signed for one swarm and one kind of message verifies in no other.
- The bytes signed are the bytes sent.
- One signature has one envelope.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from protocol.core.codec import Bytes32, Bytes64, Message, decode, encode, require_bounds
from protocol.core.digest import digest_of
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.identity import Keypair, peer_id_of, verify
from protocol.core.ids import Digest, PeerId, PublicKey, SwarmId

DOMAIN_PREFIX = b"volery/1/"
NO_SWARM = SwarmId(bytes(32))
"""The swarm id under which a genesis is signed, because it cannot contain its own hash."""
OVERHEAD_BYTES = 256
"""Bytes that an envelope adds to its payload at most: 32 + 32 + 64, the kind, and MessagePack's framing."""


class Kind(Enum):
    """Kinds of messages that are signed. The value is the payload type under the signature."""

    GENESIS = "genesis"
    CERTIFICATE = "certificate"
    MANIFEST = "manifest"
    ANNOUNCEMENT = "announcement"
    LEASE = "lease"
    RECORD = "record"
    RECEIPT = "receipt"
    RELAY_RECEIPT = "relay-receipt"
    CREDIT_NOTE = "credit-note"
    TALLY = "tally"
    REPUTATION = "reputation"
    SCORE_LEASE = "score-lease"
    SCORES = "scores"


class _Wire(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    swarm: Bytes32
    kind: Annotated[str, Meta(max_length=32)]
    key: Bytes32
    payload: bytes
    signature: Bytes64


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """An envelope as received. Nothing in it is authenticated before `verify_signature`."""

    swarm: SwarmId
    kind: Kind
    key: PublicKey
    payload: bytes
    signature: bytes
    digest: Digest

    @property
    def signer(self) -> PeerId:
        """The peer id of the key that claims to have signed."""
        return peer_id_of(self.key)

    def verify_signature(self) -> None:
        """Raise PeerError(BAD_SIGNATURE) unless `key` signed these bytes for this swarm and kind."""
        if not verify(self.key, self.signature, _signing_input(self.swarm, self.kind, self.payload)):
            raise PeerError(Fault.BAD_SIGNATURE, f"{self.kind.value} claiming to be from {self.signer}")


def seal(keypair: Keypair, swarm: SwarmId, kind: Kind, payload: bytes) -> bytes:
    """Sign `payload` and return the envelope's bytes."""
    signature = keypair.sign(_signing_input(swarm, kind, payload))
    wire = _Wire(swarm=swarm, kind=kind.value, key=keypair.public, payload=payload, signature=signature)
    return msgspec.msgpack.encode(wire)


class Signable(Message, frozen=True, kw_only=True):
    """Base of messages that `sign` signs, each under its own `KIND`."""

    KIND: ClassVar[Kind]


def sign(keypair: Keypair, swarm: SwarmId, message: Signable) -> bytes:
    """Return the envelope of `message`. Raise LocalProtocolError if a field is out of bounds."""
    return seal(keypair, swarm, message.KIND, encode(require_bounds(message)))


def read_envelope(raw: bytes, *, kind: Kind, swarm: SwarmId, limit: int) -> Envelope:
    """Parse an envelope without checking its signature, so that the caller can make cheaper checks first.

    `limit` bounds the payload. Raises PeerError: OVERSIZED, MALFORMED, WRONG_KIND or WRONG_SWARM.
    """
    wire: _Wire = decode(_Wire, raw, limit + OVERHEAD_BYTES)
    if msgspec.msgpack.encode(wire) != raw:
        raise PeerError(Fault.MALFORMED, "an envelope that is not in its shortest encoding")
    if len(wire.payload) > limit:
        raise PeerError(Fault.OVERSIZED, f"{kind.value} of {len(wire.payload)} bytes, at most {limit} allowed")
    if wire.kind != kind.value:
        raise PeerError(Fault.WRONG_KIND, f"expected {kind.value}, got {wire.kind!r}")
    if wire.swarm != swarm:
        raise PeerError(Fault.WRONG_SWARM, f"{kind.value} for swarm {wire.swarm.hex()[:8]}, ours is {swarm.hex()[:8]}")
    return Envelope(
        swarm=swarm,
        kind=kind,
        key=PublicKey(wire.key),
        payload=wire.payload,
        signature=wire.signature,
        digest=digest_of(raw),
    )


def open_envelope(raw: bytes, *, kind: Kind, swarm: SwarmId, limit: int) -> Envelope:
    """Parse an envelope and verify its signature: `envelope.signer` signed the result. Raises PeerError."""
    envelope = read_envelope(raw, kind=kind, swarm=swarm, limit=limit)
    envelope.verify_signature()
    return envelope


def _signing_input(swarm: SwarmId, kind: Kind, payload: bytes) -> bytes:
    if len(swarm) != 32:
        raise LocalProtocolError(f"a swarm id has 32 bytes, not {len(swarm)}")
    parts = (DOMAIN_PREFIX + swarm, kind.value.encode(), payload)
    return b"".join(_uvarint(len(part)) + part for part in parts)


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
