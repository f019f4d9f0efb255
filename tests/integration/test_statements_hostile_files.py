"""Verify files whose every envelope a hostile learner signed itself, with faults made before signing.

`test_check` covers damage to signed bytes. Here the signatures are good, and the contents are distorted, at the bounds,
repeated, or mixed up. `volery receipts verify` and `volery reputation verify` must end with 0 or 1, in text and as
JSON, and name every flaw by line and field.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.commands.statements.command import verify_file
from node.commands.statements.format import (
    CreditLine,
    Head,
    Line,
    ProofLine,
    ReceiptLine,
    RelayLine,
    ReputationLine,
    write_lines,
)
from protocol.accounting.credit_note import CreditNote
from protocol.accounting.relay_receipt import RelayReceipt
from protocol.accounting.reputation import DAY_MS, ObservedDay
from protocol.accounting.reputation_note import ReputationNote, reputation_note
from protocol.accounting.tally import Proof, Tally
from protocol.core.codec import decode
from protocol.core.envelope import Kind, read_envelope, seal
from protocol.core.identity import Keypair
from protocol.work import Receipt
from tests.support.message_mutations import distort, packed, tree_of
from tests.support.statements import (
    ALPHA,
    BETA,
    CERTIFICATE,
    GENESIS,
    LEARNER,
    NOW_MS,
    OPERATOR,
    SWARM,
    credit_line,
    proof_lines,
    receipt_line,
    relay_line,
)

LIMIT = 1 << 20
COUNTS = st.sampled_from([0, 1, 2**31, 2**53 - 1])
FEW, MANY = 60, 600

MESSAGES: Mapping[Kind, Any] = {
    Kind.RECEIPT: Receipt,
    Kind.RELAY_RECEIPT: RelayReceipt,
    Kind.CREDIT_NOTE: CreditNote,
    Kind.TALLY: Tally,
    Kind.REPUTATION: ReputationNote,
}


def note() -> bytes:
    found = reputation_note(
        peer=ALPHA.peer_id,
        day=NOW_MS // DAY_MS,
        days=[ObservedDay(day=NOW_MS // DAY_MS - 1, leases_in_time=9, audits_passed=3)],
        banned="",
        issued_ms=NOW_MS,
        certificate=CERTIFICATE,
    )
    return seal(LEARNER, SWARM.swarm, Kind.REPUTATION, packed(tree_of(found)))


def again(draw: st.DrawFn, raw: bytes, kind: Kind, signer: Keypair = LEARNER) -> bytes:
    """Draw the envelope's content, distorted and signed again by its signer."""
    payload = read_envelope(raw, kind=kind, swarm=SWARM.swarm, limit=LIMIT).payload
    tree = tree_of(decode(MESSAGES[kind], payload, LIMIT))
    return seal(signer, SWARM.swarm, kind, packed(distort(draw, tree)))


def _receipt(draw: st.DrawFn) -> Line:
    return ReceiptLine(envelope=again(draw, receipt_line(1).envelope, Kind.RECEIPT))


def _bounds(draw: st.DrawFn) -> Line:
    """Draw counts as large as they can be: sums exceed what a double holds, and 2^63."""
    return receipt_line(draw(st.integers(1, 3)), tokens=draw(COUNTS), issued_ms=NOW_MS + draw(st.integers(-999, 999)))


def _relay(draw: st.DrawFn) -> Line:
    line = relay_line()
    signed, noted = draw(st.booleans()), draw(st.booleans())
    return RelayLine(
        envelope=again(draw, line.envelope, Kind.RELAY_RECEIPT, BETA) if signed else line.envelope,
        note=again(draw, line.note, Kind.CREDIT_NOTE) if noted else line.note,
    )


def _credit(draw: st.DrawFn) -> Line:
    return CreditLine(note=again(draw, credit_line().note, Kind.CREDIT_NOTE))


def _proof(draw: st.DrawFn) -> Line:
    line = draw(st.sampled_from(proof_lines()))
    if draw(st.booleans()):
        return ProofLine(tally=again(draw, line.tally, Kind.TALLY), proof=line.proof)
    proof: Proof = decode(Proof, line.proof, LIMIT)
    return ProofLine(tally=line.tally, proof=packed(distort(draw, tree_of(proof)))[:4000])


def _reputation(draw: st.DrawFn) -> Line:
    return ReputationLine(note=again(draw, note(), Kind.REPUTATION))


LINES: Mapping[str, Callable[[st.DrawFn], Line]] = {
    "receipts": _receipt,
    "receipts at the bounds": _bounds,
    "relay receipts and notes": _relay,
    "credit notes": _credit,
    "proofs": _proof,
    "reputations": _reputation,
}
GOOD: list[Line] = [receipt_line(7), relay_line(), *proof_lines(), ReputationLine(note=note())]


@st.composite
def files(draw: st.DrawFn, make: Callable[[st.DrawFn], Line]) -> bytes:
    """Draw a file of such lines among good ones, each perhaps twice, with a first and a last line that fit."""
    lines = [make(draw) for _ in range(draw(st.integers(1, 3)))]
    lines = draw(st.permutations([*lines, *draw(st.lists(st.sampled_from([*lines, *GOOD]), max_size=4))]))
    return b"".join(write_lines(Head(swarm=SWARM.swarm.hex(), genesis=GENESIS), lines))


@pytest.mark.parametrize("number", [FEW, pytest.param(MANY, marks=pytest.mark.slow)], ids=["few", "many"])
@pytest.mark.parametrize("name", LINES)
def test_a_file_that_was_signed_wrong_is_judged_line_by_line(name: str, number: int) -> None:
    found: Counter[str] = Counter()

    @settings(
        max_examples=number, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(files(LINES[name]))
    def judge(raw: bytes) -> None:
        with tempfile.NamedTemporaryFile(suffix=".jsonl") as file:
            file.write(raw)
            file.flush()
            path, key = Path(file.name), OPERATOR.public.hex()
            text = verify_file(path, operator=key, invite="", as_json=False)
            said = verify_file(path, operator=key, invite="", as_json=True)
        told = json.loads(said.text)
        assert text.code == said.code == (1 if told["flaws"] else 0)
        assert text.text.endswith("\n")
        for flaw in told["flaws"]:
            assert 2 <= flaw["line"] <= raw.count(b"\n")
            assert flaw["field"]
            assert flaw["what"]
            found[flaw["field"]] += 1
        found["held"] += not told["flaws"]

    judge()
    assert found.total() > found["held"], "a weak mutation"
