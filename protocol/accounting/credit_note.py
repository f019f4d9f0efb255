"""Define credit notes: the learner's signed statement of the bytes that each relay of a relay receipt is credited with.

A relay receipt states no bytes, since its signer could state any number. The learner has the manifest, computes the
credit (`learner.trust.relay_credit`) and signs it. So a relay's account can still be checked long after the manifest
was deleted.

Invariants:

- After `open_credit_note`: the operator certified the signer, no receiver credits itself, and no relay is named twice.
- After `require_match`: the note is about that receipt, and credits only relays that the receiver named.
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
    """The credit for one relay receipt: `receiver` got the bytes of `shares` from these relays, for `manifest`.

    `receipt` is the hash of the relay receipt's envelope.
    """

    KIND: ClassVar[Kind] = Kind.CREDIT_NOTE

    receipt: Bytes32
    manifest: Bytes32
    receiver: PeerText
    shares: Annotated[list[RelayShare], Meta(min_length=1, max_length=MAX_RELAYS)]
    issued_ms: Millis
    certificate: Annotated[bytes, Meta(max_length=MAX_CERTIFICATE_BYTES)]


def open_credit_note(raw: bytes, authority: Authority) -> CreditNote:
    """Return the credit note in `raw`.

    Raises PeerError unless a key that was certified at its date signed it, and each relay is named once and is not the
    receiver.
    """
    envelope = open_envelope(raw, kind=Kind.CREDIT_NOTE, swarm=authority.swarm, limit=MAX_CREDIT_NOTE_BYTES)
    note: CreditNote = decode(CreditNote, envelope.payload, MAX_CREDIT_NOTE_BYTES)
    authority.require_learner(envelope, note.certificate, note.issued_ms)
    relays = [share.peer for share in note.shares]
    if len(set(relays)) != len(relays):
        raise PeerError(Fault.MALFORMED, "credit note: a relay is listed twice")
    if note.receiver in relays:
        raise PeerError(Fault.MALFORMED, f"credit note: {note.receiver} credits itself")
    return note


def require_match(note: CreditNote, raw: bytes, receipt: RelayReceipt) -> None:
    """Raise PeerError(BROKEN_PROMISE) unless `note` is about `receipt`, whose envelope is `raw`."""
    if note.receipt != digest_of(raw):
        raise PeerError(Fault.BROKEN_PROMISE, "credit note: it is about another relay receipt")
    if note.manifest != receipt.manifest:
        raise PeerError(Fault.BROKEN_PROMISE, "credit note: its manifest is not that of its relay receipt")
    named = set(receipt.by_chunk().values())
    for share in note.shares:
        if share.peer not in named:
            raise PeerError(Fault.BROKEN_PROMISE, f"credit note: the receiver got nothing from {share.peer}")


assert MAX_CREDIT_NOTE_BYTES + OVERHEAD_BYTES < 1 << 16
