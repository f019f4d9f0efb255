"""Credit notes: the learner's signed statement on one relay receipt, and on no other."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol.accounting.credit_note import (
    MAX_CREDIT_NOTE_BYTES,
    CreditNote,
    RelayShare,
    open_credit_note,
    require_match,
)
from protocol.accounting.relay_receipt import RelayReceipt
from protocol.core.codec import encode
from protocol.core.digest import digest_of
from protocol.core.envelope import Kind, seal, sign
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.genesis import certify_learner, found_swarm
from protocol.core.identity import Keypair
from protocol.core.limits import MAX_RELAYS

OPERATOR, LEARNER, RECEIVER, RELAY, IDLE = (Keypair(bytes([n]) * 32) for n in (1, 2, 3, 4, 5))
_, SWARM = found_swarm(OPERATOR, name="kites", created_ms=0, nonce=bytes(16))
CERTIFICATE = certify_learner(OPERATOR, SWARM, learner=LEARNER.public, not_before_ms=0, not_after_ms=1000)
MANIFEST = b"\x8a" * 32
RECEIPT = RelayReceipt(manifest=MANIFEST, relays=[RELAY.peer_id, IDLE.peer_id], givers=b"\1\0\1")
RAW = sign(RECEIVER, SWARM.swarm, RECEIPT)
NOTE = CreditNote(
    receipt=digest_of(RAW),
    manifest=MANIFEST,
    receiver=RECEIVER.peer_id,
    shares=[RelayShare(RELAY.peer_id, 700)],
    issued_ms=500,
    certificate=CERTIFICATE,
)


def fault_of(note: CreditNote, signer: Keypair = LEARNER) -> Fault:
    with pytest.raises(PeerError) as caught:
        open_credit_note(seal(signer, SWARM.swarm, Kind.CREDIT_NOTE, encode(note)), SWARM)
    return caught.value.fault


def test_a_note_is_read_as_it_was_signed_and_belongs_to_its_receipt() -> None:
    read = open_credit_note(sign(LEARNER, SWARM.swarm, NOTE), SWARM)
    assert read == NOTE
    require_match(read, RAW, RECEIPT)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"issued_ms": 1001}, Fault.UNAUTHORISED),
        ({"shares": [RelayShare(RELAY.peer_id, 1), RelayShare(RELAY.peer_id, 2)]}, Fault.MALFORMED),
        ({"shares": [RelayShare(RECEIVER.peer_id, 1)]}, Fault.MALFORMED),
        ({"shares": []}, Fault.MALFORMED),
        ({"shares": [RelayShare(RELAY.peer_id, 0)]}, Fault.MALFORMED),
    ],
)
def test_a_note_that_cannot_be_is_refused(changes: dict[str, Any], fault: Fault) -> None:
    assert fault_of(msgspec.structs.replace(NOTE, **changes)) is fault


def test_nobody_but_the_learner_credits() -> None:
    assert fault_of(NOTE, RELAY) is Fault.UNAUTHORISED
    with pytest.raises(LocalProtocolError):
        sign(LEARNER, SWARM.swarm, msgspec.structs.replace(NOTE, manifest=b""))


@pytest.mark.parametrize(
    "changes",
    [
        {"receipt": bytes(32)},
        {"manifest": bytes(32)},
        {"shares": [RelayShare(IDLE.peer_id, 1)]},
        {"shares": [RelayShare(OPERATOR.peer_id, 1)]},
    ],
)
def test_a_note_about_another_receipt_or_for_who_gave_nothing_does_not_match(changes: dict[str, Any]) -> None:
    with pytest.raises(PeerError) as caught:
        require_match(msgspec.structs.replace(NOTE, **changes), RAW, RECEIPT)
    assert caught.value.fault is Fault.BROKEN_PROMISE


def test_the_largest_note_fits_its_limit() -> None:
    crowd = [Keypair(number.to_bytes(32, "big")).peer_id for number in range(1, MAX_RELAYS + 1)]
    largest = msgspec.structs.replace(NOTE, shares=[RelayShare(peer, 2**53 - 1) for peer in crowd])
    assert len(encode(largest)) <= MAX_CREDIT_NOTE_BYTES
    assert open_credit_note(sign(LEARNER, SWARM.swarm, largest), SWARM) == largest
