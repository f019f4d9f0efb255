"""Run `volery join`, and also write its deliveries and receipts into a file outside its state: a shadow ledger.

    python -m tests.e2e.shadowed join ...

Each line is a JSON object. A "delivered" line is written before the first byte is sent. An "acknowledged" line is
written when the signed receipt was checked, before the program learns of it. A line is one write to a file opened for
appending, so a kill leaves it whole or out, and a line outlives the process that wrote it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from node.cli.main import main
from protocol.core.envelope import Kind, read_envelope
from protocol.core.ids import LeaseId
from protocol.work import MAX_RECORD_BYTES, Receipt, RolloutRecord
from swarm.work.client import Granted, WorkClient

VARIABLE = "VOLERY_TEST_SHADOW"


@dataclass(frozen=True, kw_only=True)
class Shadow:
    """The lines of a shadow ledger.

    `delivered`: by (record, lease, index), the digest by which the trainer knows the record, since a node that was
    killed makes a lease once more. `acknowledged`: by (lease, index), the record and its verdict. `contradictions`:
    places on which two receipts differ. A receipt that refuses a lease that had ended does not contradict an earlier
    admission.
    """

    delivered: dict[tuple[str, str, int], str]
    acknowledged: dict[tuple[str, int], dict[str, Any]]
    contradictions: list[str]

    @classmethod
    def read(cls, path: Path) -> Shadow:
        """Read all lines."""
        found = cls(delivered={}, acknowledged={}, contradictions=[])
        for line in path.read_text(encoding="ascii").splitlines():
            said = json.loads(line)
            for one in said["records"]:
                if said["what"] == "delivered":
                    found.delivered[one["record"], said["lease"], one["index"]] = one["trained"]
                else:
                    found._acknowledge((said["lease"], one["index"]), one)
        return found

    def _acknowledge(self, place: tuple[str, int], verdict: dict[str, Any]) -> None:
        before = self.acknowledged.setdefault(place, verdict)
        if before["rule"] == "unknown_lease":
            self.acknowledged[place] = verdict
        elif before != verdict and verdict["rule"] != "unknown_lease":
            self.contradictions.append(f"{place}: {before}, then {verdict}")


def write(what: str, lease: bytes, records: Sequence[dict[str, Any]]) -> None:
    line = json.dumps({"what": what, "lease": lease.hex(), "records": list(records)}) + "\n"
    file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        assert os.write(file, line.encode("ascii")) == len(line)
    finally:
        os.close(file)


def shadow_line() -> None:
    """Have every connection of this process to the learner's work protocol keep the shadow ledger."""
    prompts: dict[bytes, bytes] = {}
    request, deliver = WorkClient.request_leases, WorkClient.deliver

    async def requesting(self: WorkClient, rollouts: int) -> list[Granted]:
        granted = await request(self, rollouts)
        prompts.update({one.lease.id: one.lease.prompt for one in granted})
        return granted

    async def delivering(self: WorkClient, lease: LeaseId, records: Sequence[bytes]) -> tuple[Receipt, bytes]:
        write("delivered", lease, [_described(prompts[lease], raw) for raw in records])
        receipt, raw = await deliver(self, lease, records)
        verdicts = [
            {"index": one.index, "record": one.record.hex(), "rule": one.rule.value} for one in receipt.verdicts
        ]
        write("acknowledged", lease, verdicts)
        return receipt, raw

    WorkClient.request_leases, WorkClient.deliver = requesting, delivering  # type: ignore[method-assign]


def _described(prompt: bytes, raw: bytes) -> dict[str, Any]:
    """Return a record's index, its own digest, and the digest by which the trainer that hashes knows it. Ids and log
    probabilities travel as the trainer gets them.
    """
    swarm = msgspec.msgpack.decode(raw)[0]
    envelope = read_envelope(raw, kind=Kind.RECORD, swarm=swarm, limit=MAX_RECORD_BYTES)
    record = msgspec.msgpack.decode(envelope.payload, type=RolloutRecord)
    trained = sha256(prompt + record.tokens + record.logprobs).hexdigest()[:16]
    return {"index": record.index, "record": envelope.digest.hex(), "trained": trained}


if __name__ == "__main__":
    shadow_line()
    main()
