"""Credit notes: the learner's signed word on what a relay receipt is worth, relay by relay, in bytes.

A relay receipt states no bytes, since its signer might state any; the learner has the manifest, works out what counts
(`learner.trust.relay_credit`), and says it under its own signature, so that a relay's account can be checked when the
manifest is long gone. What always holds after `open_credit_note`: the operator stands behind the signer, nobody is
credited by itself, and no relay is named twice. After `require_match`: the note is about that very receipt, and credits
nobody whom the receiver did not name.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from protocol.accounting.relay_receipt import RelayReceipt
from protocol.core.codec import Bytes32, Millis, PeerText, decode
from protocol.core.digest import digest_of
from protocol.core.envelope import OVERHEAD_BYTES, Kind, Signable, open_envelope
from protocol.core.errors import Fault, PeerError
from protocol.core.genesis import MAX_CERTIFICATE_BYTES, Authority
from protocol.core.limits import MAX_RELAYS

MAX_CREDIT_NOTE_BYTES = 72 * MAX_RELAYS + MAX_CERTIFICATE_BYTES + 512


class RelayShare(msgspec.Struct, frozen=True, array_like=True):
    """One relay, and the bytes that it is credited with."""

    peer: PeerText
    size_bytes: Annotated[int, Meta(ge=1, lt=1 << 53)]


class CreditNote(Signable, frozen=True, kw_only=True):
    """By the relay receipt whose envelope has the hash `receipt`, `receiver` had so many bytes of `manifest` from each
    of `shares`.
    """

    KIND: ClassVar[Kind] = Kind.CREDIT_NOTE

    receipt: Bytes32
    manifest: Bytes32
    receiver: PeerText
    shares: Annotated[list[RelayShare], Meta(min_length=1, max_length=MAX_RELAYS)]
    issued_ms: Millis
    certificate: Annotated[bytes, Meta(max_length=MAX_CERTIFICATE_BYTES)]


def open_credit_note(raw: bytes, authority: Authority) -> CreditNote:
    """Return the note in `raw`; PeerError unless a key certified at its date signed it, and each relay is named once
    and is not the receiver.
    """
    envelope = open_envelope(raw, kind=Kind.CREDIT_NOTE, swarm=authority.swarm, limit=MAX_CREDIT_NOTE_BYTES)
    note: CreditNote = decode(CreditNote, envelope.payload, MAX_CREDIT_NOTE_BYTES)
    authority.require_learner(envelope, note.certificate, note.issued_ms)
    relays = [share.peer for share in note.shares]
    if len(set(relays)) != len(relays):
        raise PeerError(Fault.MALFORMED, "credit note: a relay is listed twice")
    if note.receiver in relays:
        raise PeerError(Fault.MALFORMED, f"credit note: {note.receiver} is credited by itself")
    return note


def require_match(note: CreditNote, raw: bytes, receipt: RelayReceipt) -> None:
    """Raise PeerError(BROKEN_PROMISE) unless `note` is about `receipt`, whose envelope is `raw`."""
    if note.receipt != digest_of(raw):
        raise PeerError(Fault.BROKEN_PROMISE, "credit note: it is about another relay receipt")
    if note.manifest != receipt.manifest:
        raise PeerError(Fault.BROKEN_PROMISE, "credit note: it is about another manifest than its relay receipt")
    named = set(receipt.by_chunk().values())
    for share in note.shares:
        if share.peer not in named:
            raise PeerError(Fault.BROKEN_PROMISE, f"credit note: the receiver had nothing from {share.peer}")


assert MAX_CREDIT_NOTE_BYTES + OVERHEAD_BYTES < 1 << 16
