"""A valid statement adds up; every flaw is named by line and field, and none ends the program."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.commands.statements import verify as check
from node.commands.statements.format import MAX_LINE_BYTES, Line, ProofLine, RelayLine
from node.commands.statements.text import verdict_json, verdict_text
from node.commands.statements.verify import Expected, PeerSum
from protocol.accounting.tally import MAX_PROOF_BYTES, Proof
from protocol.core.codec import decode, encode
from protocol.core.ids import PublicKey
from protocol.work import Rule, Verdict
from tests.support.examples import examples
from tests.support.statements import (
    ALPHA,
    BETA,
    FOREIGN_SWARM,
    NOW_MS,
    OPERATOR,
    OTHER_GENESIS,
    OTHER_SWARM,
    STRANGER,
    SWARM,
    TRAINED,
    V6,
    Draft,
    credit_line,
    flaws,
    judged,
    only,
    proof_lines,
    receipt_line,
    record_id,
    relay_line,
    tally_of_all,
    trained,
)

GOOD = Draft().written()
"""Line 1 the head, 2 and 3 receipts, 4 a credited relay receipt, 5 one that is not, 6 to 8 proofs, 9 the end."""


def test_a_good_statement_adds_up() -> None:
    found = judged(GOOD)
    assert found.flaws == []
    assert found.holds
    one, two = NOW_MS + 1000, NOW_MS + 2000
    alpha = PeerSum(receipts=1, admitted=2, tokens=20, relayed_bytes=700, proven=2, first_ms=one, last_ms=one)
    beta = PeerSum(receipts=1, admitted=1, refused=1, tokens=10, proven=1, first_ms=two, last_ms=two)
    assert found.peers == {ALPHA.peer_id: alpha, BETA.peer_id: beta}
    assert (found.name, found.operator, found.swarm, found.uncredited) == ("kites", OPERATOR.public, SWARM.swarm, 1)
    assert {(one.record, one.published, one.records) for one in found.proven} == {
        (one.record, V6, 3) for one in TRAINED
    }


def test_a_credit_note_alone_counts_as_one_with_its_receipt() -> None:
    found = judged(Draft(lines=[credit_line()]).written())
    assert found.holds
    assert found.peers == {ALPHA.peer_id: PeerSum(relayed_bytes=700)}


def test_dates_span_all_receipts() -> None:
    draft = Draft(lines=[receipt_line(9), receipt_line(3), receipt_line(5)])
    alpha = judged(draft.written()).peers[ALPHA.peer_id]
    assert (alpha.receipts, alpha.first_ms, alpha.last_ms) == (3, NOW_MS + 3000, NOW_MS + 9000)


@pytest.mark.parametrize("expected", [Expected(operator=OPERATOR.public), Expected(authority=SWARM)])
def test_the_operator_that_was_named_is_found(expected: Expected) -> None:
    assert judged(GOOD, expected).holds


@pytest.mark.parametrize(
    ("expected", "field"),
    [
        (Expected(operator=PublicKey(STRANGER.public)), "genesis"),
        (Expected(authority=FOREIGN_SWARM), "genesis"),
        (Expected(authority=OTHER_SWARM), "swarm"),
    ],
)
def test_another_operator_or_swarm_is_named_and_nothing_is_added_up(expected: Expected, field: str) -> None:
    found = judged(GOOD, expected)
    assert (only(found).line, only(found).field, found.peers) == (1, field, {})


# What is signed, and wrong.


def with_lines(*lines: Line) -> list[bytes]:
    return Draft(lines=[*lines]).written()


def flipped(raw: bytes, at: int = -1) -> bytes:
    out = bytearray(raw)
    out[at] ^= 1
    return bytes(out)


def late(**changes: Any) -> Line:
    return receipt_line(1, issued_ms=NOW_MS + 10_000_000, **changes)


def twice(index: int, record: int) -> Line:
    verdict = Verdict(record=record_id(7, 0), index=0, rule=Rule.ADMITTED)
    other = msgspec.structs.replace(verdict, index=index, record=record_id(7, record))
    return receipt_line(7, verdicts=[verdict, other])


def with_record_of_another() -> Line:
    return receipt_line(2, verdicts=[Verdict(record=record_id(1, 1), index=0, rule=Rule.ADMITTED)])


def all_stale() -> Line:
    return receipt_line(1, rules=[Rule.STALE, Rule.STALE], tokens=0)


def no_proof() -> ProofLine:
    one = proof_lines()[0]
    proof: Proof = decode(Proof, one.proof, MAX_PROOF_BYTES)
    return ProofLine(tally=one.tally, proof=encode(msgspec.structs.replace(proof, path=proof.path[:-1])))


BAD: dict[str, tuple[Callable[[], Sequence[Line]], int, str, str]] = {
    "a signature that does not verify": (
        lambda: [msgspec.structs.replace(receipt_line(1), envelope=flipped(receipt_line(1).envelope))],
        2, "envelope", "bad_signature",
    ),
    "a signer who was never certified": (lambda: [receipt_line(1, signer=STRANGER)], 2, "envelope", "unauthorised"),
    "a date at which the signer was not certified": (lambda: [late()], 2, "envelope", "is not valid at"),
    "a receipt of another swarm": (lambda: [receipt_line(1, swarm=OTHER_SWARM)], 2, "envelope", "wrong_swarm"),
    "another kind of message": (
        lambda: [msgspec.structs.replace(receipt_line(1), envelope=relay_line().envelope)], 2, "envelope", "wrong_kind",
    ),
    "a lease twice": (lambda: [receipt_line(1), receipt_line(1)], 3, "lease", "count twice"),
    "a record twice": (
        lambda: [receipt_line(1), with_record_of_another()],
        3, "verdicts", "is admitted above",
    ),
    "a record twice in one receipt": (lambda: [twice(1, 0)], 2, "verdicts", "is admitted above"),
    "an index twice": (lambda: [twice(0, 1)], 2, "verdicts", "index 0"),
    "tokens of nothing": (lambda: [receipt_line(1, rules=[Rule.STALE], tokens=5)], 2, "tokens", "5 tokens"),
    "a relay receipt twice": (lambda: [relay_line(), relay_line()], 3, "envelope", "above"),
    "a note on another receipt": (lambda: [relay_line(receipt=bytes(32))], 2, "note", "another relay receipt"),
    "a note on another manifest": (lambda: [relay_line(manifest=bytes(32))], 2, "note", "not that of its relay"),
    "a note for another receiver": (lambda: [relay_line(receiver=STRANGER.peer_id)], 2, "note", "did not sign"),
    "a note by the relay itself": (lambda: [relay_line(signer=ALPHA)], 2, "note", "unauthorised"),
    "a note that is none": (
        lambda: [msgspec.structs.replace(relay_line(), note=b"x")], 2, "note", "malformed",
    ),
    "a credit note of nobody's": (lambda: [credit_line(signer=ALPHA)], 2, "note", "unauthorised"),
    "a credit note twice": (lambda: [credit_line(), credit_line(issued_ms=NOW_MS + 1)], 3, "note", "credited above"),
    "a credit note alone and with its receipt": (lambda: [relay_line(), credit_line()], 3, "note", "credited above"),
    "a path that leads elsewhere": (lambda: [no_proof()], 2, "proof", "does not lead"),
    "a proof twice": (lambda: [*proof_lines(), proof_lines()[0]], 5, "proof", "above"),
    "a tally of nobody": (
        lambda: [msgspec.structs.replace(proof_lines()[0], tally=flipped(tally_of_all()))], 2, "tally", "bad_signature",
    ),
    "two tallies of one version": (
        lambda: [proof_lines()[0], proof_lines(issued_ms=NOW_MS + 1)[1]], 3, "tally", "equivocation",
    ),
    "a proof that the receipt contradicts": (
        lambda: [all_stale(), proof_lines()[0]], 3, "proof", "does not admit",
    ),
    "a proof for another than the receipt": (
        lambda: [receipt_line(1, BETA.peer_id), proof_lines([trained(1, 0)])[0]], 3, "proof", "does not admit",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "line", "field", "what"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_is_named(lines: Callable[[], Sequence[Line]], line: int, field: str, what: str) -> None:
    found = judged(with_lines(*lines()))
    flaw = only(found)
    assert (flaw.line, flaw.field) == (line, field)
    assert what in flaw.what
    assert f"line {line}, {field}: " in verdict_text(found, "FILE")


def test_one_flaw_does_not_hide_another_and_the_rest_is_added_up() -> None:
    found = judged(with_lines(late(), receipt_line(2), relay_line(receipt=bytes(32)), receipt_line(3)))
    assert [(flaw.line, flaw.field) for flaw in found.flaws] == [(2, "envelope"), (4, "note")]
    assert found.peers[ALPHA.peer_id].receipts == 2


@pytest.mark.parametrize("rule", [Rule.AUDIT, Rule.BANNED])
def test_a_later_receipt_that_refuses_a_record_does_not_undo_what_it_trained(rule: Rule) -> None:
    """It had trained a version that a restart cut off, or it could not have been refused any more."""
    revised = receipt_line(1, rules=[rule, rule], tokens=0)
    found = judged(with_lines(revised, *proof_lines()))
    assert found.holds
    alpha = found.peers[ALPHA.peer_id]
    assert (alpha.admitted, alpha.refused, alpha.tokens, alpha.proven) == (0, 2, 0, 2)
    assert flaws(with_lines(revised, receipt_line(1))) == [(3, "lease")], "the earlier receipt must not count any more"


def test_a_record_may_train_a_version_that_was_cut_off_and_another_one() -> None:
    again = [trained(1, 0, version=msgspec.structs.replace(V6, incarnation=2))]
    lines = [*proof_lines()[:3], *proof_lines(again, version=again[0].version)]
    assert judged(with_lines(*lines)).holds


# The file's form.


def resealed(lines: Sequence[bytes]) -> list[bytes]:
    """The lines with an end that fits them."""
    body = b"".join(lines)
    end = {"kind": "end", "lines": len(lines), "sha256": hashlib.sha256(body).hexdigest()}
    return [*lines, json.dumps(end, separators=(",", ":")).encode() + b"\n"]


FORMS: dict[str, tuple[Callable[[], list[bytes]], list[tuple[int, str]]]] = {
    "empty": (list, [(0, "file")]),
    "cut short": (lambda: GOOD[:-1], [(0, "file")]),
    "cut inside a line": (lambda: [*GOOD[:-1], GOOD[-1][:-5]], [(9, "line"), (0, "file")]),
    "a line left out": (lambda: [*GOOD[:2], *GOOD[3:]], [(8, "lines")]),
    "lines in another order": (lambda: [GOOD[0], GOOD[2], GOOD[1], *GOOD[3:]], [(9, "sha256")]),
    "something behind the end": (lambda: [*GOOD, b"\n"], [(10, "line")]),
    "no head": (lambda: GOOD[1:], [(1, "line")]),
    "not JSON": (lambda: resealed([GOOD[0], b"hello\n"]), [(2, "line")]),
    "not text": (lambda: resealed([GOOD[0], b"\xff\xfe\n"]), [(2, "line")]),
    "an unknown kind": (lambda: resealed([GOOD[0], b'{"kind":"karma"}\n']), [(2, "kind")]),
    "a field that nobody knows": (
        lambda: resealed([GOOD[0], GOOD[1][:-2] + b',"x":1}\n']), [(2, "line")],
    ),
    "another encoding of the same": (lambda: resealed([GOOD[0], GOOD[1].replace(b":", b": ", 1)]), [(2, "line")]),
    "no line end": (lambda: [*GOOD[:-1], GOOD[-1].rstrip()], [(9, "line"), (0, "file")]),
    "not base64": (lambda: resealed([GOOD[0], b'{"kind":"receipt","envelope":"%"}\n']), [(2, "envelope")]),
    "a line that is too long": (
        lambda: resealed([GOOD[0], b'{"kind":"receipt","envelope":"' + b"A" * MAX_LINE_BYTES + b'"}\n']), [(2, "line")],
    ),
    "nested without end": (lambda: resealed([GOOD[0], b"[" * 100_000 + b"\n"]), [(2, "line")]),
}  # fmt: skip


@pytest.mark.parametrize(("raw", "expected"), FORMS.values(), ids=FORMS.keys())
def test_what_is_no_statement_is_named(raw: Callable[[], list[bytes]], expected: list[tuple[int, str]]) -> None:
    assert flaws(raw()) == expected


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"genesis": b"x"}, "genesis"),
        ({"genesis": OTHER_GENESIS}, "swarm"),
        ({"swarm": "00" * 32}, "swarm"),
        ({"swarm": "AB"}, "swarm"),
        ({"format": 2}, "format"),
        ({"volery": "receipts"}, "volery"),
    ],
)
def test_a_head_that_cannot_be_is_named(changes: dict[str, Any], field: str) -> None:
    head = msgspec.structs.replace(Draft().head, **changes)
    found = judged(Draft(head=head).written())
    assert (only(found).line, only(found).field) == (1, field)


def test_bounds_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MAX_LINES", 3)
    assert flaws(GOOD) == [(6, "line")]
    monkeypatch.undo()
    monkeypatch.setattr(check, "MAX_RECORDS", 2)
    assert flaws(GOOD) == [(3, "line")]
    monkeypatch.undo()
    monkeypatch.setattr(check, "MAX_FLAWS", 2)
    found = judged(with_lines(*[late()] * 5))
    assert (len(found.flaws), found.more_flaws) == (2, 3)
    assert "2 error(s), and 3 more" in verdict_text(found, "FILE")


def test_a_flaw_cannot_move_the_cursor() -> None:
    raw = resealed([GOOD[0], b'{"kind":"receipt","envelope":"","\\u001b[2J":1}\n'])
    assert "\x1b" not in verdict_text(judged(raw), "FILE")


# Fuzz.


many = settings(max_examples=examples(1500), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def damage(draw: st.DrawFn, raw: bytes) -> bytes:
    """`raw` with one to three bytes or stretches changed, inserted, removed or cut off."""
    out = bytearray(raw)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(out)))
        out[at : at + draw(st.sampled_from([0, 1, 1, 4, len(out)]))] = draw(st.binary(max_size=5))
    return bytes(out)


@many
@given(damage(b"".join(GOOD)))
def test_a_damaged_file_never_holds_and_never_crashes(raw: bytes) -> None:
    found = judged(raw.splitlines(keepends=True))
    assert found.holds == (raw == b"".join(GOOD))
    assert len(verdict_text(found, "FILE")) < 1 << 20
    json.loads(verdict_json(found))


@many
@given(st.integers(1, len(GOOD) - 2), st.data())
def test_a_damaged_line_under_an_end_that_fits_is_named(number: int, data: st.DataObject) -> None:
    """As somebody would forge a file: everything fits but the signatures."""
    lines = GOOD[:-1]
    line = data.draw(damage(lines[number]).filter(lambda raw: raw.count(b"\n") == 1 and raw.endswith(b"\n")))
    found = judged(resealed([*lines[:number], line, *lines[number + 1 :]]))
    assert found.holds == (line == lines[number])
    assert {flaw.line for flaw in found.flaws} <= {number + 1, *range(number + 2, len(lines) + 1)}


@many
@given(st.data())
def test_damaged_envelopes_in_whole_lines_are_named(data: st.DataObject) -> None:
    """Base64 and JSON are right, so it is the envelopes that are judged."""
    draft = Draft()
    draft.lines.append(credit_line(manifest=bytes(32)))
    place = data.draw(st.integers(0, len(draft.lines) - 1))
    line = draft.lines[place]
    names = [name for name in line.__struct_fields__ if getattr(line, name)]
    name = data.draw(st.sampled_from(names))
    changed = data.draw(damage(getattr(line, name)).filter(lambda raw: len(raw) <= 1 << 12))
    draft.lines[place] = msgspec.structs.replace(line, **{name: changed})
    if isinstance(line, ProofLine) and name == "proof" and len(changed) > MAX_PROOF_BYTES:
        return
    found = judged(draft.written())
    is_note_gone = isinstance(line, RelayLine) and name == "note" and not changed
    assert found.holds == (changed == getattr(line, name) or is_note_gone)
    assert all(flaw.what for flaw in found.flaws)


@given(st.binary(max_size=200))
def test_noise_is_no_statement(raw: bytes) -> None:
    assert not judged(raw.splitlines(keepends=True)).holds
