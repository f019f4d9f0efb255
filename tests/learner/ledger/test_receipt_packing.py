"""Packed receipts unpack to the signed bytes, or raise NotPacked."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.ledger.receipt_packing import (
    MAX_RECORDS,
    Known,
    NotPacked,
    certificate_in,
    is_packed,
    needed,
    pack,
    unpack,
)
from protocol.core.envelope import sign
from protocol.core.ids import PolicyVersion
from protocol.work import Receipt, Rule, Verdict
from tests.support.store_fixture import small_swarm

SWARM = small_swarm()
PEER = SWARM.operator.peer_id


def receipt_of(rewards: list[float | None], *, lease: int = 1, seed: int = 0) -> tuple[bytes, Known]:
    """A receipt as the learner signs it, and what the ledger has of it."""
    records = [bytes([seed, number % 256, number // 256]) * 10 + b"id" for number in range(len(rewards))]
    receipt = Receipt(
        lease=bytes([lease]) * 16,
        peer=PEER,
        version=PolicyVersion(1, 76),
        issued_ms=1_795_949_175_021,
        tokens=28,
        verdicts=[
            Verdict(record=record, index=place, rule=Rule.ADMITTED, reward=reward)
            for place, (record, reward) in enumerate(zip(records, rewards, strict=True))
        ],
        certificate=SWARM.certificate,
    )
    raw = sign(SWARM.learner, SWARM.authority.swarm, receipt)
    known = Known(
        lease=receipt.lease,
        peer=PEER,
        certificate=certificate_in(raw),
        records=[(record, place, reward) for place, (record, reward) in enumerate(zip(records, rewards, strict=True))],
    )
    return raw, known


def test_a_receipt_of_four_is_an_eighth() -> None:
    raw, known = receipt_of([1.0, 0.0, 0.25, 1.0])
    assert known.certificate == SWARM.certificate
    packed = pack(raw, 7, known)
    assert not is_packed(raw)
    assert is_packed(packed)
    assert needed(packed) == (7, 4)
    assert len(packed) < len(raw) / 6
    assert unpack(packed, known) == raw


@given(st.lists(st.none() | st.floats(0, 1), max_size=20), st.integers(0, 3))
def test_whatever_it_says_it_reads_back(rewards: list[float | None], later: int) -> None:
    """Records that come under the lease later change nothing."""
    raw, known = receipt_of(rewards)
    packed = pack(raw, 1, known)
    more = [(bytes([200 + number]) * 32, number, 0.5) for number in range(later)]
    assert unpack(packed, replace(known, records=[*known.records, *more])) == raw


@given(st.binary(max_size=2000))
def test_bytes_that_are_no_receipt_read_back_too(raw: bytes) -> None:
    _, known = receipt_of([1.0])
    packed = pack(raw, 1, known)
    assert packed == raw or unpack(packed, known) == raw


def test_a_lease_of_very_many_reads_back() -> None:
    raw, known = receipt_of([0.5] * (MAX_RECORDS + 10))
    assert unpack(pack(raw, 1, known), known) == raw


def test_what_is_not_packed_is_said() -> None:
    raw, known = receipt_of([1.0, 0.5])
    packed = pack(raw, 1, known)
    for wrong in (b"", b"\0", packed[:7], packed[:-1], packed + b"x", packed[:8] + b"\xff" + packed[9:]):
        with pytest.raises(NotPacked):
            unpack(wrong, known)


def test_a_certificate_is_found_or_none() -> None:
    assert certificate_in(b"") == certificate_in(b"\x95") == certificate_in(b"\x91\x01") == b""
