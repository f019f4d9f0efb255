"""Reputation notes: the learner's signed statement of its own observations, and of nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from protocol.accounting.reputation import COUNTS, DAY_MS, WINDOW_DAYS, Band, ObservedDay
from protocol.accounting.reputation_note import (
    MAX_REPUTATION_NOTE_BYTES,
    ReputationNote,
    open_reputation_note,
    reputation_note,
)
from protocol.core.codec import encode
from protocol.core.envelope import Kind, seal, sign
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.genesis import certify_learner, found_swarm
from protocol.core.identity import Keypair
from protocol.core.limits import MAX_REASON_CHARS

OPERATOR, LEARNER, PEER = (Keypair(bytes([n]) * 32) for n in (1, 2, 3))
_, SWARM = found_swarm(OPERATOR, name="kites", created_ms=0, nonce=bytes(16))
TODAY = 20_000
NOW_MS = TODAY * DAY_MS + 5
CERTIFICATE = certify_learner(OPERATOR, SWARM, learner=LEARNER.public, not_before_ms=0, not_after_ms=2 * NOW_MS)
SEEN = [
    ObservedDay(day=TODAY - 7, leases_in_time=40, groups_clean=40, audits_passed=8, present_ms=DAY_MS),
    ObservedDay(day=TODAY, leases_in_time=10, leases_failed=3, groups_clean=12, bytes_given=9, bytes_had=10),
]


def note_of(days: list[ObservedDay] = SEEN, **changes: Any) -> ReputationNote:
    settings: dict[str, Any] = {
        "peer": PEER.peer_id, "day": TODAY, "days": days, "banned": "", "issued_ms": NOW_MS, "certificate": CERTIFICATE,
    }  # fmt: skip
    return reputation_note(**settings | changes)


def fault_of(note: ReputationNote, signer: Keypair = LEARNER, kind: Kind = Kind.REPUTATION) -> Fault:
    with pytest.raises(PeerError) as caught:
        open_reputation_note(seal(signer, SWARM.swarm, kind, encode(note)), SWARM)
    return caught.value.fault


def test_a_note_is_read_as_it_was_signed() -> None:
    note = note_of()
    assert open_reputation_note(sign(LEARNER, SWARM.swarm, note), SWARM) == note
    assert note.band is Band.STEADY
    assert (note.score, note.soundness, note.service) == (round(1000 * note.reputation.score), 1000, 900)


def test_a_ban_is_told_with_its_reason() -> None:
    note = note_of(banned="x" * (MAX_REASON_CHARS + 9))
    assert note.band is Band.BANNED
    assert open_reputation_note(sign(LEARNER, SWARM.swarm, note), SWARM) == note


def test_days_are_put_in_order_and_those_out_of_the_window_left_out() -> None:
    days = [*reversed(SEEN), ObservedDay(day=TODAY + 1), ObservedDay(day=TODAY - WINDOW_DAYS - 1)]
    assert note_of(days) == note_of()


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"score": 1000}, Fault.BROKEN_PROMISE),
        ({"timeliness": 0}, Fault.BROKEN_PROMISE),
        ({"service": 1000}, Fault.BROKEN_PROMISE),
        ({"band": Band.QUARANTINED}, Fault.BROKEN_PROMISE),
        ({"banned": "so"}, Fault.BROKEN_PROMISE),
        ({"days": []}, Fault.BROKEN_PROMISE),
        ({"day": TODAY + 1}, Fault.MALFORMED),
        ({"day": TODAY - 1}, Fault.MALFORMED),
        ({"days": SEEN[::-1]}, Fault.MALFORMED),
        ({"days": [SEEN[1], SEEN[1]]}, Fault.MALFORMED),
        ({"days": [ObservedDay(day=TODAY - WINDOW_DAYS - 1), *SEEN]}, Fault.MALFORMED),
        ({"days": [ObservedDay(day=TODAY - n) for n in range(WINDOW_DAYS + 1, -1, -1)]}, Fault.MALFORMED),
        ({"scale": 2}, Fault.MALFORMED),
        ({"score": 1001}, Fault.MALFORMED),
        ({"issued_ms": 3 * NOW_MS}, Fault.UNAUTHORISED),
    ],
)
def test_a_note_that_says_something_else_than_its_observations_is_refused(
    changes: dict[str, Any], fault: Fault
) -> None:
    assert fault_of(msgspec.structs.replace(note_of(), **changes)) is fault


def test_a_thousandth_of_rounding_is_none() -> None:
    note = note_of()
    raw = sign(LEARNER, SWARM.swarm, msgspec.structs.replace(note, score=note.score - 1))
    assert open_reputation_note(raw, SWARM).score == note.score - 1
    assert fault_of(msgspec.structs.replace(note, score=note.score - 2)) is Fault.BROKEN_PROMISE


def test_nobody_but_the_learner_says_how_a_peer_stands() -> None:
    assert fault_of(note_of(), PEER) is Fault.UNAUTHORISED
    assert fault_of(note_of(), OPERATOR) is Fault.UNAUTHORISED
    assert fault_of(note_of(), kind=Kind.CREDIT_NOTE) is Fault.WRONG_KIND
    with pytest.raises(LocalProtocolError):
        sign(LEARNER, SWARM.swarm, msgspec.structs.replace(note_of(), score=-1))


def test_the_largest_note_fits_its_limit() -> None:
    most = {name: DAY_MS if name.endswith("_ms") else 2**53 - 1 for name in COUNTS}
    days = [ObservedDay(day=TODAY - n, **most) for n in range(WINDOW_DAYS, -1, -1)]
    largest = note_of(days, banned="\U0001f400" * MAX_REASON_CHARS)
    assert len(encode(largest)) <= MAX_REPUTATION_NOTE_BYTES
    assert open_reputation_note(sign(LEARNER, SWARM.swarm, largest), SWARM) == largest
