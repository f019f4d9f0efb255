"""Leases, records and receipts: shapes, signers, bounds, and what an older reader makes of a newer one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.accounting.claims import CostClaim, Price
from protocol.core.codec import decode, encode, pack_logprobs, pack_tokens
from protocol.core.digest import digest_of
from protocol.core.envelope import OVERHEAD_BYTES, Kind, seal, sign
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.genesis import certify_learner, found_swarm
from protocol.core.identity import Keypair
from protocol.core.ids import PolicyVersion
from protocol.core.limits import (
    MAX_ADDRESS_CHARS,
    MAX_ADDRESSES,
    MAX_COMPLETION_TOKENS,
    MAX_GROUP_SIZE,
    MAX_MICROS_PER_HOUR,
    MAX_MILLIS,
    MAX_PROMPT_TOKENS,
    MAX_REQUEST_BYTES,
    MAX_SECONDS,
    MAX_SPANS,
    MAX_STOP_IDS,
    MAX_TOKEN_ID,
    MAX_WORK_BYTES,
)
from protocol.work import (
    MAX_HELLO_BYTES,
    MAX_LEASE_BYTES,
    MAX_LEASES_HELD,
    MAX_RECEIPT_BYTES,
    MAX_RECORD_BYTES,
    Acknowledgement,
    Delivery,
    FromLearner,
    FromNode,
    Grant,
    Hello,
    Lease,
    Receipt,
    RolloutRecord,
    Rule,
    Sampler,
    Span,
    Timing,
    Verdict,
    open_lease,
    open_receipt,
    read_record,
)

OPERATOR, LEARNER, AUTHOR = (Keypair(bytes([n]) * 32) for n in (1, 2, 3))
_, SWARM = found_swarm(OPERATOR, name="kites", created_ms=0, nonce=bytes(16))
_, ELSEWHERE = found_swarm(OPERATOR, name="kites", created_ms=1, nonce=bytes(16))
CERTIFICATE = certify_learner(OPERATOR, SWARM, learner=LEARNER.public, not_before_ms=1000, not_after_ms=2000)
MANIFEST = b"\x8a" * 32
LAST = 2**53 - 1
WIDEST = "\U0001d50e"
"""A character that takes four bytes."""


def span(start: int, end: int, version: int = 7) -> Span:
    return Span(start, end, PolicyVersion(1, version), MANIFEST)


LEASE = Lease(
    id=b"\x1e" * 16,
    peer=AUTHOR.peer_id,
    task="reversal",
    prompt=pack_tokens([5, 6]),
    seeds=[1, 2**64 - 1],
    sampler=Sampler(),
    stop_ids=[2],
    max_new_tokens=8,
    minimum=PolicyVersion(1, 6),
    issued_ms=1000,
    deadline_ms=61_000,
)
RECORD = RolloutRecord(
    lease=LEASE.id,
    index=1,
    tokens=pack_tokens([9, 8, 2]),
    logprobs=pack_logprobs([-0.5, -1.5, 0.0]),
    spans=[span(0, 2), span(2, 3, version=8)],
    sampler=Sampler(),
    timing=Timing(started_ms=1500, generation_ms=20),
    cost=CostClaim(engine_s=0.02),
    reward=1.0,
)
RECEIPT = Receipt(
    lease=LEASE.id,
    peer=AUTHOR.peer_id,
    version=PolicyVersion(1, 8),
    issued_ms=1600,
    tokens=3,
    verdicts=[Verdict(record=MANIFEST, index=1, rule=Rule.ADMITTED, reward=1.0)],
    certificate=CERTIFICATE,
)


def fault_of(function: Any, *args: Any, **kwargs: Any) -> Fault:
    with pytest.raises(PeerError) as caught:
        function(*args, **kwargs)
    return caught.value.fault


def record_but(**changes: Any) -> bytes:
    return sign(AUTHOR, SWARM.swarm, msgspec.structs.replace(RECORD, **changes))


# Leases


def test_a_lease_is_read_as_the_learner_signed_it() -> None:
    raw = sign(LEARNER, SWARM.swarm, LEASE)
    assert open_lease(raw, SWARM.swarm, learner=LEARNER.peer_id) == LEASE


def test_a_lease_of_anybody_else_or_elsewhere_is_refused() -> None:
    forged = sign(AUTHOR, SWARM.swarm, LEASE)
    assert fault_of(open_lease, forged, SWARM.swarm, learner=LEARNER.peer_id) is Fault.UNAUTHORISED
    foreign = sign(LEARNER, ELSEWHERE.swarm, LEASE)
    assert fault_of(open_lease, foreign, SWARM.swarm, learner=LEARNER.peer_id) is Fault.WRONG_SWARM
    other = sign(LEARNER, SWARM.swarm, RECEIPT)
    assert fault_of(open_lease, other, SWARM.swarm, learner=LEARNER.peer_id) is Fault.WRONG_KIND


BAD_LEASES: dict[str, dict[str, Any]] = {
    "no prompt": {"prompt": b""},
    "no seeds": {"seeds": []},
    "negative seed": {"seeds": [-1]},
    "too many seeds": {"seeds": [0] * (MAX_GROUP_SIZE + 1)},
    "greedy": {"sampler": Sampler(temperature=0.0)},
    "negative temperature": {"sampler": Sampler(temperature=-1.0)},
    "too many stop ids": {"stop_ids": [0] * (MAX_STOP_IDS + 1)},
    "no budget": {"max_new_tokens": 0},
    "budget too large": {"max_new_tokens": MAX_COMPLETION_TOKENS + 1},
    "short id": {"id": bytes(15)},
    "peer id cut short": {"peer": AUTHOR.peer_id[:-1]},
    "deadline before 1970": {"deadline_ms": -1},
}


@pytest.mark.parametrize("changes", BAD_LEASES.values(), ids=BAD_LEASES.keys())
def test_a_lease_out_of_bounds_is_never_signed_and_never_read(changes: dict[str, Any]) -> None:
    bad = msgspec.structs.replace(LEASE, **changes)
    with pytest.raises(LocalProtocolError, match=f"Lease.*{next(iter(changes))}"):
        sign(LEARNER, SWARM.swarm, bad)
    raw = seal(LEARNER, SWARM.swarm, Kind.LEASE, encode(bad))
    assert fault_of(open_lease, raw, SWARM.swarm, learner=LEARNER.peer_id) is Fault.MALFORMED


# Records


def test_a_record_is_read_as_its_author_signed_it() -> None:
    raw = sign(AUTHOR, SWARM.swarm, RECORD)
    read = read_record(raw, SWARM.swarm)
    assert (read.raw, bytes(read.id), read.author, read.record) == (raw, digest_of(raw), AUTHOR.peer_id, RECORD)
    assert (read.tokens, read.logprobs) == ((9, 8, 2), (-0.5, -1.5, 0.0))
    assert read.behaviour == (PolicyVersion(1, 7), PolicyVersion(1, 8))
    read.envelope.verify_signature()


def test_the_signature_is_left_for_later() -> None:
    raw = record_but()
    read = read_record(raw[:-1] + bytes([raw[-1] ^ 1]), SWARM.swarm)
    assert read.record == RECORD
    assert fault_of(read.envelope.verify_signature) is Fault.BAD_SIGNATURE


BAD_RECORDS: dict[str, tuple[dict[str, Any], str]] = {
    "more logprobs than tokens": ({"logprobs": pack_logprobs([-1.0] * 4)}, "3 tokens but 4 logprobs"),
    "fewer logprobs than tokens": ({"logprobs": pack_logprobs([-1.0] * 2)}, "3 tokens but 2 logprobs"),
    "logprobs that are not whole": ({"logprobs": bytes(11)}, "multiple of 4"),
    "a logprob that is not a number": ({"logprobs": pack_logprobs([-1.0, float("nan"), -1.0])}, "from -100 to 0"),
    "a positive logprob": ({"logprobs": pack_logprobs([-1.0, 0.5, -1.0])}, "from -100 to 0"),
    "spans begin late": ({"spans": [span(1, 3)]}, "at token 0"),
    "spans leave a gap": ({"spans": [span(0, 1), span(2, 3)]}, "at token 1"),
    "spans overlap": ({"spans": [span(0, 2), span(1, 3)]}, "at token 2"),
    "spans out of order": ({"spans": [span(2, 3), span(0, 2)]}, "at token 0"),
    "spans end early": ({"spans": [span(0, 2)]}, "cover 2 of 3"),
    "spans go on too long": ({"spans": [span(0, 4)]}, "cover 4 of 3"),
    "a span of nothing": ({"spans": [span(0, 2), span(2, 2), span(2, 3)]}, "at token 2"),
    "a span that runs backwards": ({"spans": [span(0, 3), span(3, 1)]}, "at token 3"),
}


@pytest.mark.parametrize(("changes", "detail"), BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_a_record_of_the_wrong_shape_is_malformed(changes: dict[str, Any], detail: str) -> None:
    with pytest.raises(PeerError, match=detail) as caught:
        read_record(record_but(**changes), SWARM.swarm)
    assert caught.value.fault is Fault.MALFORMED


RECORDS_OUT_OF_BOUNDS: dict[str, dict[str, Any]] = {
    "no tokens": {"tokens": b""},
    "no spans": {"spans": []},
    "too many spans": {"spans": [span(n, n + 1) for n in range(MAX_SPANS + 1)]},
    "index of no group": {"index": MAX_GROUP_SIZE},
    "reward that is not a number": {"reward": float("nan")},
    "negative cost": {"cost": CostClaim(engine_s=-1.0)},
    "span of a negative version": {"spans": [Span(0, 3, PolicyVersion(1, -1), MANIFEST)]},
    "span of half a hash": {"spans": [Span(0, 3, PolicyVersion(1, 1), MANIFEST[:16])]},
}


@pytest.mark.parametrize("changes", RECORDS_OUT_OF_BOUNDS.values(), ids=RECORDS_OUT_OF_BOUNDS.keys())
def test_a_record_out_of_bounds_is_never_signed_and_never_read(changes: dict[str, Any]) -> None:
    bad = msgspec.structs.replace(RECORD, **changes)
    with pytest.raises(LocalProtocolError):
        sign(AUTHOR, SWARM.swarm, bad)
    assert fault_of(read_record, seal(AUTHOR, SWARM.swarm, Kind.RECORD, encode(bad)), SWARM.swarm) is Fault.MALFORMED


@given(st.lists(st.integers(1, 20), min_size=1, max_size=MAX_SPANS))
def test_spans_that_follow_each_other_cover_all_tokens(lengths: list[int]) -> None:
    ends = [sum(lengths[: n + 1]) for n in range(len(lengths))]
    spans = [span(end - length, end, version) for version, (end, length) in enumerate(zip(ends, lengths, strict=True))]
    total = ends[-1]
    raw = record_but(spans=spans, tokens=pack_tokens([1] * total), logprobs=pack_logprobs([-1.0] * total))
    assert [v.version for v in read_record(raw, SWARM.swarm).behaviour] == list(range(len(lengths)))


def test_an_oversized_record_is_refused_before_parsing() -> None:
    assert fault_of(read_record, b"\xc1" * (MAX_RECORD_BYTES + OVERHEAD_BYTES + 1), SWARM.swarm) is Fault.OVERSIZED


def test_one_oversized_record_does_not_spoil_the_delivery() -> None:
    """It must reach the rule that names it, beside verdicts on its siblings."""
    delivery = Delivery(lease=LEASE.id, records=[record_but(), bytes(MAX_RECORD_BYTES + OVERHEAD_BYTES + 1)])
    assert decode(FromNode, encode(delivery), MAX_WORK_BYTES) == delivery


# Receipts


def test_a_receipt_is_judged_at_its_own_date() -> None:
    assert open_receipt(sign(LEARNER, SWARM.swarm, RECEIPT), SWARM) == RECEIPT
    for issued_ms in (999, 2001):
        raw = sign(LEARNER, SWARM.swarm, msgspec.structs.replace(RECEIPT, issued_ms=issued_ms))
        assert fault_of(open_receipt, raw, SWARM) is Fault.UNAUTHORISED


def test_only_a_certified_learner_signs_receipts() -> None:
    assert fault_of(open_receipt, sign(AUTHOR, SWARM.swarm, RECEIPT), SWARM) is Fault.UNAUTHORISED
    foreign = sign(LEARNER, ELSEWHERE.swarm, RECEIPT)
    assert fault_of(open_receipt, foreign, SWARM) is Fault.WRONG_SWARM


def test_a_rule_younger_than_the_reader_is_a_refusal_it_can_still_show() -> None:
    fields = msgspec.msgpack.decode(encode(RECEIPT))
    fields["verdicts"][0] |= {"rule": "seeded_audit", "detail": "token 12 is not the one that the sampler gives"}
    raw = seal(LEARNER, SWARM.swarm, Kind.RECEIPT, msgspec.msgpack.encode(fields))
    (verdict,) = open_receipt(raw, SWARM).verdicts
    assert verdict.rule is Rule.OTHER
    assert not verdict.admitted
    assert "token 12" in verdict.detail


def test_only_one_rule_admits() -> None:
    admitting = [rule for rule in Rule if Verdict(record=MANIFEST, index=0, rule=rule).admitted]
    assert admitting == [Rule.ADMITTED]


# Bounds


def test_the_largest_of_each_kind_fits_its_limit() -> None:
    version, tokens = PolicyVersion(LAST, LAST), MAX_COMPLETION_TOKENS
    cuts = [0, *range(1, MAX_SPANS), tokens]
    spans = [Span(start, end, version, MANIFEST) for start, end in pairwise(cuts)]
    record = RolloutRecord(
        lease=LEASE.id,
        index=MAX_GROUP_SIZE - 1,
        tokens=bytes(4 * tokens),
        logprobs=bytes(4 * tokens),
        spans=spans,
        sampler=Sampler(temperature=0.1),
        timing=Timing(started_ms=MAX_MILLIS, generation_ms=MAX_MILLIS),
        cost=CostClaim(engine_s=MAX_SECONDS),
        reward=1e15,
    )
    assert len(read_record(sign(AUTHOR, SWARM.swarm, record), SWARM.swarm).tokens) == tokens
    lease = msgspec.structs.replace(
        LEASE,
        task=WIDEST * 128,
        prompt=bytes(4 * MAX_PROMPT_TOKENS),
        seeds=[2**64 - 1] * MAX_GROUP_SIZE,
        stop_ids=[MAX_TOKEN_ID] * MAX_STOP_IDS,
    )
    raw = sign(LEARNER, SWARM.swarm, lease)
    assert open_lease(raw, SWARM.swarm, learner=LEARNER.peer_id) == lease
    verdict = Verdict(
        record=MANIFEST, index=MAX_GROUP_SIZE - 1, rule=Rule.UNKNOWN_VERSION, reward=1e15, detail="d" * 512
    )
    receipt = msgspec.structs.replace(RECEIPT, verdicts=[verdict] * MAX_GROUP_SIZE, certificate=CERTIFICATE)
    raw = sign(LEARNER, SWARM.swarm, receipt)
    assert open_receipt(raw, SWARM) == receipt
    assert len(encode(Acknowledgement(lease=LEASE.id, receipt=raw))) <= MAX_WORK_BYTES
    assert max(MAX_LEASE_BYTES, MAX_RECORD_BYTES, MAX_RECEIPT_BYTES) < MAX_WORK_BYTES


def test_a_greeting_fits_what_a_stranger_may_send() -> None:
    hello = Hello(
        protocol=LAST,
        name=WIDEST * 128,
        token=WIDEST * 128,
        addresses=["a" * MAX_ADDRESS_CHARS] * MAX_ADDRESSES,
        leases=[LEASE.id] * MAX_LEASES_HELD,
        price=Price(micros_per_hour=MAX_MICROS_PER_HOUR, currency="EUR"),
        engine=WIDEST * 128,
        machine=WIDEST * 128,
    )
    assert len(encode(hello)) <= MAX_HELLO_BYTES <= MAX_REQUEST_BYTES
    assert decode(FromNode, encode(hello), MAX_HELLO_BYTES) == hello


@pytest.mark.parametrize(
    "frame",
    [
        Grant(leases=[bytes(MAX_LEASE_BYTES + OVERHEAD_BYTES + 1)], now_ms=0),
        Grant(leases=[b""] * 257, now_ms=0),
        Acknowledgement(lease=LEASE.id, receipt=bytes(MAX_RECEIPT_BYTES + OVERHEAD_BYTES + 1)),
        Delivery(lease=LEASE.id, records=[b""] * 1025),
        Delivery(lease=b"", records=[]),
    ],
    ids=["long lease", "many leases", "long receipt", "many records", "no lease"],
)
def test_a_frame_out_of_bounds_is_refused(frame: msgspec.Struct) -> None:
    union = FromNode if isinstance(frame, get_args(FromNode)) else FromLearner
    assert fault_of(decode, union, encode(frame), MAX_WORK_BYTES) is Fault.MALFORMED


# Newer writers


def test_newer_leases_records_and_receipts_are_read_and_their_signatures_hold() -> None:
    def newer(message: msgspec.Struct) -> bytes:
        return msgspec.msgpack.encode(
            msgspec.msgpack.decode(encode(message)) | {"later": [1, {"x": 2}], "ext": {"a": b"b"}}
        )

    lease = open_lease(seal(LEARNER, SWARM.swarm, Kind.LEASE, newer(LEASE)), SWARM.swarm, learner=LEARNER.peer_id)
    assert lease == msgspec.structs.replace(LEASE, ext={"a": b"b"})
    record = read_record(seal(AUTHOR, SWARM.swarm, Kind.RECORD, newer(RECORD)), SWARM.swarm)
    record.envelope.verify_signature()
    assert record.record == msgspec.structs.replace(RECORD, ext={"a": b"b"})
    receipt = open_receipt(seal(LEARNER, SWARM.swarm, Kind.RECEIPT, newer(RECEIPT)), SWARM)
    assert receipt == msgspec.structs.replace(RECEIPT, ext={"a": b"b"})
