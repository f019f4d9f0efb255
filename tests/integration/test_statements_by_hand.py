"""Verify a statement without our code, as docs/reference/protocol.md says: JSON, base64, MessagePack, sha2-256 and
Ed25519.

Authors of another verifier can begin here. It takes every file for one that holds, and fails on the first that does
not.
"""

from __future__ import annotations

import hashlib
import json
import math
from base64 import b64decode
from collections import Counter
from typing import Any

import base58
import msgspec
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from node.commands.statements.format import ReceiptLine
from protocol.accounting.reputation import ObservedDay
from tests.support.statements import (
    ALPHA,
    BETA,
    OPERATOR,
    STRANGER,
    TODAY,
    Draft,
    credit_line,
    receipt_line,
    reputation_line,
)


def sha(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def peer_id(key: bytes) -> str:
    return base58.b58encode(bytes.fromhex("002408011220") + key).decode()


def opened(raw: bytes, kind: str, swarm: bytes) -> tuple[bytes, Any]:
    """Return the signer's key and the payload of an envelope (section 7)."""
    named, said, key, payload, signature = msgspec.msgpack.decode(raw)
    assert (named, said) == (swarm, kind)
    parts = (b"volery/1/" + swarm, kind.encode(), payload)
    Ed25519PublicKey.from_public_bytes(key).verify(signature, b"".join(varint(len(one)) + one for one in parts))
    return key, msgspec.msgpack.decode(payload)


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def of_learner(raw: bytes, kind: str, swarm: bytes, operator: bytes) -> Any:
    """Return a statement of a learner that was certified when it made it (section 8)."""
    key, said = opened(raw, kind, swarm)
    signer, word = opened(said["certificate"], "certificate", swarm)
    assert (signer, word["learner"]) == (operator, key)
    assert word["not_before_ms"] <= said["issued_ms"] <= word["not_after_ms"]
    return said


def root_of(entry: bytes, place: int, size: int, path: list[bytes]) -> bytes:
    """Return the Merkle root from the top down (RFC 9162, section 2.1.3): the path's last hash is the sibling of the
    root's child.
    """
    if size == 1:
        assert (place, path) == (0, [])
        return sha(b"\0" + entry)
    half = 1 << (size - 1).bit_length() - 1
    if place < half:
        return sha(b"\1" + root_of(entry, place, half, path[:-1]) + path[-1])
    return sha(b"\1" + path[-1] + root_of(entry, place - half, size - half, path[:-1]))


def shares(today: int, days: list[list[int]]) -> dict[str, float]:
    """Compute the shares by the rules of scale 1."""
    assert [day[0] for day in days] == sorted({day[0] for day in days})
    assert all(0 <= today - day[0] <= 56 for day in days)
    here, missed, in_time, failed, clean, blamed, passed, bad, given, had = (
        sum(day[place] * 2 ** ((day[0] - today) / 7) for day in days if len(day) > place) for place in range(1, 11)
    )
    each = {
        "availability": (here + 3_600_000) / (here + missed + 3_600_000),
        "timeliness": (in_time + 4) / (in_time + failed + 4),
        "honesty": (clean + 4) / (clean + blamed + 4),
        "soundness": 2 ** -max(0, 0.999 * bad - 0.001 * passed),
    }
    bare = math.prod(each.values())
    service = min(1, given / had) if given and had else float(given > 0)
    return {**each, "service": service, "score": bare + (1 - bare) * 0.1 * service}


def sums(file: bytes, operator: bytes) -> dict[str, Counter[str]]:
    """Return the sums of a file; raise AssertionError or InvalidSignature if it is not valid."""
    first, *lines, last = map(json.loads, file.splitlines())
    body = file[: file.rstrip(b"\n").rindex(b"\n") + 1]
    assert (last["lines"], last["sha256"]) == (1 + len(lines), sha(body).hex())
    genesis = b64decode(first["genesis"])
    swarm = sha(genesis)
    key, said = opened(genesis, "genesis", bytes(32))
    assert (first["swarm"], key, said["operator"]) == (swarm.hex(), operator, operator)
    found: dict[str, Counter[str]] = {}
    seen: set[tuple[Any, ...]] = set()
    for line in lines:
        raw = {name: b64decode(text) for name, text in line.items() if name != "kind"}
        match line["kind"]:
            case "receipt":
                said = of_learner(raw["envelope"], "receipt", swarm, operator)
                once, peer = ("lease", said["lease"]), said["peer"]
                admitted = sum(verdict["rule"] == "admitted" for verdict in said["verdicts"])
                more = {"admitted": admitted, "tokens": said["tokens"]}
                found.setdefault(peer, Counter()).update(more)
            case "relay":
                key, said = opened(raw["envelope"], "relay-receipt", swarm)
                once = ("relay", said["manifest"], key)
                if "note" in raw:
                    note = of_learner(raw["note"], "credit-note", swarm, operator)
                    assert (note["receipt"], note["manifest"]) == (sha(raw["envelope"]), said["manifest"])
                    assert note["receiver"] == peer_id(key)
                    for relay, size in note["shares"]:
                        assert relay in said["relays"]
                        found.setdefault(relay, Counter()).update({"relayed": size})
            case "credit":
                note = of_learner(raw["note"], "credit-note", swarm, operator)
                once = ("note", note["manifest"], note["receiver"])
                for relay, size in note["shares"]:
                    found.setdefault(relay, Counter()).update({"relayed": size})
            case "proof":
                tally = of_learner(raw["tally"], "tally", swarm, operator)
                proof = msgspec.msgpack.decode(raw["proof"])
                assert root_of(proof["leaf"], proof["place"], tally["records"], proof["path"]) == tally["root"]
                record, peer, _, _, version = msgspec.msgpack.decode(proof["leaf"])
                assert tally["after"] < version[1] <= tally["version"][1]
                assert version <= tally["version"]
                once = ("proof", record, sha(raw["tally"]))
                found.setdefault(peer, Counter()).update({"proven": 1})
            case "reputation":
                note = of_learner(raw["note"], "reputation", swarm, operator)
                once = ("reputation", note["peer"])
                for share, value in shares(note["day"], note["days"]).items():
                    assert abs(note[share] - 1000 * value) <= 1.5
                found.setdefault(note["peer"], Counter()).update({"score": note["score"]})
            case unknown:
                raise AssertionError(unknown)
        assert once not in seen
        seen.add(once)
    return found


SEEN = [
    ObservedDay(day=TODAY - 14, present_ms=3_600_000, leases_in_time=40, audits_passed=4),
    ObservedDay(
        day=TODAY, present_ms=7_200_000, missed_ms=600_000, leases_in_time=20, leases_failed=3, groups_clean=19,
        groups_blamed=1, audits_passed=2, bytes_given=500, bytes_had=1000,
    ),
]  # fmt: skip


def test_a_statement_is_judged_by_the_document_alone() -> None:
    draft = Draft()
    draft.lines += [credit_line(by=STRANGER), reputation_line(seen=SEEN), reputation_line(BETA.peer_id)]
    found = sums(b"".join(draft.written()), OPERATOR.public)
    assert found == {
        ALPHA.peer_id: Counter(admitted=2, tokens=20, relayed=1400, proven=2, score=846),
        BETA.peer_id: Counter(admitted=1, tokens=10, proven=1, score=1000),
    }


def test_and_found_wanting() -> None:
    raw = receipt_line(1).envelope
    forged = ReceiptLine(envelope=raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(InvalidSignature):
        sums(b"".join(Draft(lines=[forged]).written()), OPERATOR.public)
    with pytest.raises(AssertionError):
        sums(b"".join(Draft().written()), ALPHA.public)
