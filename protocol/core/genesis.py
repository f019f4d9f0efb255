"""Found a swarm, and decide which keys may sign for it.

The operator signs a genesis once. The digest of that envelope is the swarm id, so the id pins the operator. The
operator then certifies learner keys for stated periods, so keys can rotate and a standby learner can take over without
a new swarm.

Invariants:

- A message counts as the learner's only if the operator certified its signer for the time at which it is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from protocol.core.codec import Bytes16, Bytes32, Count, Millis, Name, decode
from protocol.core.dates import moment
from protocol.core.envelope import NO_SWARM, OVERHEAD_BYTES, Envelope, Kind, Signable, open_envelope, sign
from protocol.core.errors import Fault, PeerError
from protocol.core.identity import Keypair, peer_id_of
from protocol.core.ids import PeerId, PublicKey, SwarmId
from protocol.core.limits import MAX_ANNOUNCEMENT_BYTES, PROTOCOL_VERSION

MAX_GENESIS_BYTES = 1024
"""Size of the payload. The longest name in the widest script takes half of it."""
MAX_CERTIFICATE_BYTES = 400
"""Size of the whole envelope. Announcements contain certificates and have 1 KiB for everything."""
MAX_CERTIFICATE_PAYLOAD_BYTES = MAX_CERTIFICATE_BYTES - OVERHEAD_BYTES
CERTIFICATES_REMEMBERED = 64
"""Verified certificates kept in memory. Receipts and announcements carry the same one for weeks."""


class Genesis(Signable, frozen=True, kw_only=True):
    """The founding message of a swarm: its name, the operator's key, the date, and a nonce that makes swarms with equal
    settings different."""

    KIND: ClassVar[Kind] = Kind.GENESIS

    protocol: Count
    name: Name
    operator: Bytes32
    created_ms: Millis
    nonce: Bytes16


class LearnerCertificate(Signable, frozen=True, kw_only=True):
    """The operator's statement that the key `learner` may sign as the learner from `not_before_ms` to `not_after_ms`.

    Both times are only compared and shown, so they may be beyond what calendars can represent.
    """

    KIND: ClassVar[Kind] = Kind.CERTIFICATE

    learner: Bytes32
    not_before_ms: Count
    not_after_ms: Count


@dataclass(frozen=True, kw_only=True)
class Authority:
    """A swarm's id and its operator's key. An invite pins both, and every signature is checked against them."""

    swarm: SwarmId
    operator: PublicKey

    def require_learner(self, envelope: Envelope, certificate: bytes, now_ms: int) -> None:
        """Raise PeerError unless `certificate` lets the signer of `envelope` act as the learner at `now_ms`.

        UNAUTHORISED if the certificate names another key or another period; otherwise what `open_certificate` raises.
        """
        word = open_certificate(certificate, self)
        if word.learner != envelope.key:
            named = peer_id_of(PublicKey(word.learner))
            raise PeerError(Fault.UNAUTHORISED, f"{envelope.signer} shows a certificate for {named}")
        if not word.not_before_ms <= now_ms <= word.not_after_ms:
            raise PeerError(
                Fault.UNAUTHORISED,
                f"the certificate of {envelope.signer} is not valid at {moment(now_ms)}: it is valid from "
                f"{moment(word.not_before_ms)} to {moment(word.not_after_ms)}",
            )


def found_swarm(operator: Keypair, *, name: str, created_ms: int, nonce: bytes) -> tuple[bytes, Authority]:
    """Return the genesis envelope of a new swarm, and its authority."""
    genesis = Genesis(
        protocol=PROTOCOL_VERSION, name=name, operator=operator.public, created_ms=created_ms, nonce=nonce
    )
    raw = sign(operator, NO_SWARM, genesis)
    return raw, read_genesis(raw)[1]


def read_genesis(raw: bytes) -> tuple[Genesis, Authority]:
    """Return the genesis in `raw` and the authority that it founds.

    Raises PeerError: UNAUTHORISED if the operator that it names did not sign it, INCOMPATIBLE for another protocol
    version.
    """
    envelope = open_envelope(raw, kind=Kind.GENESIS, swarm=NO_SWARM, limit=MAX_GENESIS_BYTES)
    genesis: Genesis = decode(Genesis, envelope.payload, MAX_GENESIS_BYTES)
    if genesis.operator != envelope.key:
        raise PeerError(Fault.UNAUTHORISED, "a genesis must be signed by the operator it names")
    if genesis.protocol != PROTOCOL_VERSION:
        raise PeerError(
            Fault.INCOMPATIBLE, f"the swarm speaks protocol {genesis.protocol}, this program {PROTOCOL_VERSION}"
        )
    return genesis, Authority(swarm=SwarmId(envelope.digest), operator=PublicKey(genesis.operator))


def certify_learner(
    operator: Keypair, authority: Authority, *, learner: PublicKey, not_before_ms: int, not_after_ms: int
) -> bytes:
    """Return the envelope of a certificate that lets `learner` sign for the swarm in the stated period."""
    word = LearnerCertificate(learner=learner, not_before_ms=not_before_ms, not_after_ms=not_after_ms)
    return sign(operator, authority.swarm, word)


@lru_cache(maxsize=CERTIFICATES_REMEMBERED)
def open_certificate(raw: bytes, authority: Authority) -> LearnerCertificate:
    """Return the certificate in `raw`. Raise PeerError(UNAUTHORISED) if the operator did not sign it."""
    envelope = open_envelope(raw, kind=Kind.CERTIFICATE, swarm=authority.swarm, limit=MAX_CERTIFICATE_PAYLOAD_BYTES)
    if envelope.key != authority.operator:
        raise PeerError(Fault.UNAUTHORISED, f"a certificate signed by {envelope.signer}, which is not the operator")
    word: LearnerCertificate = decode(LearnerCertificate, envelope.payload, MAX_CERTIFICATE_PAYLOAD_BYTES)
    return word


def learner_of(certificate: LearnerCertificate) -> PeerId:
    """Return the peer id that a certificate names."""
    return peer_id_of(PublicKey(certificate.learner))


assert MAX_CERTIFICATE_BYTES < MAX_ANNOUNCEMENT_BYTES
