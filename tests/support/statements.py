"""Build a valid statement, in parts that a test may change before they are signed or after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

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
from node.commands.statements.verify import Expected, Flaw, Statement, check_statement
from protocol.accounting.credit_note import CreditNote, RelayShare
from protocol.accounting.relay_receipt import RelayReceipt
from protocol.accounting.reputation import DAY_MS, ObservedDay
from protocol.accounting.reputation_note import reputation_note
from protocol.accounting.tally import Tally, TrainedRecord, proofs_for, sign_tally, tree_of
from protocol.core.codec import encode
from protocol.core.digest import digest_of
from protocol.core.envelope import sign
from protocol.core.genesis import Authority, certify_learner, found_swarm
from protocol.core.identity import Keypair
from protocol.core.ids import PeerId, PolicyVersion
from protocol.work import Receipt, Rule, Verdict

OPERATOR, LEARNER, ALPHA, BETA, STRANGER = (Keypair(bytes([n]) * 32) for n in range(1, 6))
GENESIS, SWARM = found_swarm(OPERATOR, name="kites", created_ms=0, nonce=bytes(16))
OTHER_GENESIS, OTHER_SWARM = found_swarm(OPERATOR, name="kites", created_ms=1, nonce=bytes(16))
FOREIGN_GENESIS, FOREIGN_SWARM = found_swarm(STRANGER, name="kites", created_ms=0, nonce=bytes(16))
NOW_MS = 1_760_000_000_000
TODAY = NOW_MS // DAY_MS
CERTIFICATE = certify_learner(
    OPERATOR, SWARM, learner=LEARNER.public, not_before_ms=NOW_MS - 1000, not_after_ms=NOW_MS + 1_000_000
)
MANIFEST = b"\x8a" * 32
V6 = PolicyVersion(1, 6)


def record_id(lease: int, index: int) -> bytes:
    return digest_of(b"%d %d" % (lease, index))


def lease_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def receipt(
    number: int, peer: PeerId = ALPHA.peer_id, *, rules: Sequence[Rule] = (Rule.ADMITTED,) * 2, **changes: Any
) -> Receipt:
    verdicts = [Verdict(record=record_id(number, i), index=i, rule=rule) for i, rule in enumerate(rules)]
    settings: dict[str, Any] = {
        "lease": lease_id(number),
        "peer": peer,
        "version": V6,
        "issued_ms": NOW_MS + 1000 * number,
        "tokens": 10 * sum(rule is Rule.ADMITTED for rule in rules),
        "verdicts": verdicts,
        "certificate": CERTIFICATE,
    }
    return Receipt(**settings | changes)


def receipt_line(*args: Any, signer: Keypair = LEARNER, swarm: Authority = SWARM, **options: Any) -> ReceiptLine:
    return ReceiptLine(envelope=sign(signer, swarm.swarm, receipt(*args, **options)))


def relay_line(
    by: Keypair = BETA,
    relay: PeerId = ALPHA.peer_id,
    *,
    noted: bool = True,
    signer: Keypair = LEARNER,
    **changes: Any,
) -> RelayLine:
    raw = sign(by, SWARM.swarm, RelayReceipt(manifest=MANIFEST, relays=[relay], givers=b"\1\0\1"))
    settings: dict[str, Any] = {
        "receipt": digest_of(raw),
        "manifest": MANIFEST,
        "receiver": by.peer_id,
        "shares": [RelayShare(relay, 700)],
        "issued_ms": NOW_MS,
        "certificate": CERTIFICATE,
    }
    note = sign(signer, SWARM.swarm, CreditNote(**settings | changes)) if noted else b""
    return RelayLine(envelope=raw, note=note)


def credit_line(**options: Any) -> CreditLine:
    return CreditLine(note=relay_line(**options).note)


def trained(number: int, index: int, peer: PeerId = ALPHA.peer_id, version: PolicyVersion = V6) -> TrainedRecord:
    return TrainedRecord(record_id(number, index), peer, lease_id(number), index, version)


TRAINED = [trained(1, 0), trained(1, 1), trained(2, 0, BETA.peer_id)]


def tally_of_all(records: Sequence[TrainedRecord] = TRAINED, **changes: Any) -> bytes:
    tree = tree_of(records)[1]
    settings: dict[str, Any] = {
        "version": V6, "after": 4, "records": tree.size, "root": tree.root, "issued_ms": NOW_MS,
        "certificate": CERTIFICATE,
    }  # fmt: skip
    return sign_tally(LEARNER, SWARM, Tally(**settings | changes))


def proof_lines(records: Sequence[TrainedRecord] = TRAINED, **changes: Any) -> list[ProofLine]:
    leaves, tree = tree_of(records)
    tally = tally_of_all(records, **changes)
    return [ProofLine(tally=tally, proof=encode(one)) for one in proofs_for(leaves, tree, range(tree.size))]


def reputation_line(
    peer: PeerId = ALPHA.peer_id, *, seen: Sequence[ObservedDay] = (), signer: Keypair = LEARNER, **changes: object
) -> ReputationLine:
    """Return a reputation as of today, from nine leases in time unless set otherwise; `changes` are made before
    signing.
    """
    days = list(seen) or [ObservedDay(day=TODAY, leases_in_time=9)]
    note = reputation_note(
        peer=peer, day=TODAY, days=days, banned="", issued_ms=NOW_MS, certificate=CERTIFICATE
    )  # fmt: skip
    return ReputationLine(note=sign(signer, SWARM.swarm, msgspec.structs.replace(note, **changes)))


@dataclass(kw_only=True)
class Draft:
    """A file before it is written."""

    head: Head = field(default_factory=lambda: Head(swarm=SWARM.swarm.hex(), genesis=GENESIS))
    lines: list[Line] = field(
        default_factory=lambda: [
            receipt_line(1),
            receipt_line(2, BETA.peer_id, rules=(Rule.ADMITTED, Rule.STALE)),
            relay_line(),
            relay_line(ALPHA, BETA.peer_id, noted=False),
            *proof_lines(),
        ]
    )

    def written(self) -> list[bytes]:
        return list(write_lines(self.head, self.lines))


def judged(raw: Sequence[bytes], expected: Expected | None = None) -> Statement:
    return check_statement(raw, expected or Expected())


def flaws(raw: Sequence[bytes], expected: Expected | None = None) -> list[tuple[int, str]]:
    """Return (line, field) of each flaw."""
    return [(flaw.line, flaw.field) for flaw in judged(raw, expected).flaws]


def only(statement: Statement) -> Flaw:
    (flaw,) = statement.flaws
    return flaw
