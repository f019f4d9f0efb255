"""How a swarm begins, and who may speak for it.

The operator signs a genesis once; the digest of that envelope is the swarm id, so the id pins the operator. The
operator then certifies learner keys for stated times: keys rotate and a standby can take over without a new swarm.
What always holds: a message counts as the learner's only if its signer holds a certificate that the operator signed
and that is valid now.
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
"""Payload: the longest name in the widest script takes half of it."""
MAX_CERTIFICATE_BYTES = 400
"""Whole envelope: certificates ride in announcements, which have 1 KiB for everything."""
MAX_CERTIFICATE_PAYLOAD_BYTES = MAX_CERTIFICATE_BYTES - OVERHEAD_BYTES
CERTIFICATES_REMEMBERED = 64
"""Of those whose signature was found good: each receipt and announcement carries the same one for weeks."""


class Genesis(Signable, frozen=True, kw_only=True):
    """The first word of a swarm: name, operator's key, when, and a nonce that makes equal settings different swarms."""

    KIND: ClassVar[Kind] = Kind.GENESIS

    protocol: Count
    name: Name
    operator: Bytes32
    created_ms: Millis
    nonce: Bytes16


class LearnerCertificate(Signable, frozen=True, kw_only=True):
    """The operator's word that `learner` may sign as the learner from `not_before_ms` until `not_after_ms`.

    Both are only compared and told, so they may lie beyond what calendars hold.
    """

    KIND: ClassVar[Kind] = Kind.CERTIFICATE

    learner: Bytes32
    not_before_ms: Count
    not_after_ms: Count


@dataclass(frozen=True, kw_only=True)
class Authority:
    """A swarm's id and its operator: what an invite pins, and what every signature is judged against."""

    swarm: SwarmId
    operator: PublicKey

    def require_learner(self, envelope: Envelope, certificate: bytes, now_ms: int) -> None:
        """Raise PeerError unless `certificate` lets the signer of `envelope` act as the learner at `now_ms`.

        UNAUTHORISED when it names another key or another time, else what `open_certificate` raises.
        """
        word = open_certificate(certificate, self)
        if word.learner != envelope.key:
            named = peer_id_of(PublicKey(word.learner))
            raise PeerError(Fault.UNAUTHORISED, f"{envelope.signer} shows a certificate for {named}")
        if not word.not_before_ms <= now_ms <= word.not_after_ms:
            raise PeerError(
                Fault.UNAUTHORISED,
                f"the certificate of {envelope.signer} is not valid now: it holds from {moment(word.not_before_ms)} "
                f"until {moment(word.not_after_ms)}, and it is judged at {moment(now_ms)}",
            )


def found_swarm(operator: Keypair, *, name: str, created_ms: int, nonce: bytes) -> tuple[bytes, Authority]:
    """Return the genesis envelope of a new swarm, and its authority."""
    genesis = Genesis(
        protocol=PROTOCOL_VERSION, name=name, operator=operator.public, created_ms=created_ms, nonce=nonce
    )
    raw = sign(operator, NO_SWARM, genesis)
    return raw, read_genesis(raw)[1]


def read_genesis(raw: bytes) -> tuple[Genesis, Authority]:
    """Return a genesis and the authority it founds.

    Raises PeerError: UNAUTHORISED when it was not signed by the operator it names, INCOMPATIBLE for another protocol
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
    """Return the certificate envelope that lets `learner` speak for the swarm in the stated time."""
    word = LearnerCertificate(learner=learner, not_before_ms=not_before_ms, not_after_ms=not_after_ms)
    return sign(operator, authority.swarm, word)


@lru_cache(maxsize=CERTIFICATES_REMEMBERED)
def open_certificate(raw: bytes, authority: Authority) -> LearnerCertificate:
    """Return a certificate signed by the operator; PeerError(UNAUTHORISED) when somebody else signed it."""
    envelope = open_envelope(raw, kind=Kind.CERTIFICATE, swarm=authority.swarm, limit=MAX_CERTIFICATE_PAYLOAD_BYTES)
    if envelope.key != authority.operator:
        raise PeerError(Fault.UNAUTHORISED, f"a certificate signed by {envelope.signer}, who is not the operator")
    word: LearnerCertificate = decode(LearnerCertificate, envelope.payload, MAX_CERTIFICATE_PAYLOAD_BYTES)
    return word


def learner_of(certificate: LearnerCertificate) -> PeerId:
    """The peer id that a certificate names."""
    return peer_id_of(PublicKey(certificate.learner))


assert MAX_CERTIFICATE_BYTES < MAX_ANNOUNCEMENT_BYTES
