"""Write a learner's ledger and log as of a run that takes a step a second, for the page's benchmark.

Invariants:

- Rows and events have the form, the order and the number that a learner's have.
- The same seed writes the same run.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from learner.ledger.ledger import Ledger
from learner.ledger.rows import LeaseRow, PeerRow, PresenceRow, RecordRow, StepRow, TimeRow
from learner.provisioning.estimation.learner_time import LearnerTime, TimeKind
from node.runtime.events import MAX_LOG_BYTES
from protocol.core.digest import digest_of
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId, ManifestHash, PeerId, PolicyVersion, RecordId
from protocol.work import Rule

GROUPS, GROUP = 4, 4
"""Groups of a step, and rollouts of a group."""

HEARTBEAT_S = 5
EVALUATE_EVERY = 10

Event = tuple[str, dict[str, Any]]


def peer_of(number: int) -> PeerId:
    return Keypair((number + 100).to_bytes(32, "big")).peer_id


def events_at(second: int, peers: list[PeerId]) -> Iterator[Event]:
    """Yield what a learner logs in this second of the run."""
    if second == 0:
        yield "incarnation_began", {"incarnation": 1, "step": 0}
        for number, peer in enumerate(peers):
            yield "peer_joined", {"peer": peer, "name": f"node {number}", "engine": "vllm", "machine": "8 cores"}
    step = second + 1
    for place in range(GROUPS):
        judged = {"admitted": GROUP, "refused": 0, "tokens": 900, "lag": 1, "reason": "", "detail": ""}
        yield "delivery_judged", {"peer": peers[(step + place) % len(peers)], **judged}
    for number in range(second % HEARTBEAT_S, len(peers), HEARTBEAT_S):
        told = {"installed": f"1.{step - 1}", "pending": 4, "bytes_up": step * 1000, "bytes_down": step * 9000}
        yield "heartbeat", {"peer": peers[number], **told}
    reward = round(0.9 - 0.6 * math.exp(-step / 900) + 0.05 * math.sin(step), 4)
    yield "step", {"step": step, "buffered": 16, "reward": reward, "utilisation": 0.7, "blocked": 0.1, "entropy": 0.4}
    yield "version_published", {"version": f"1.{step}"}
    if step % EVALUATE_EVERY == 0:
        yield "evaluated", {"version": f"1.{step}", "greedy": reward, "sampled": round(reward - 0.05, 4)}


@dataclass
class LogWriter:
    """Writes events as `node.runtime.events` does, with times of one's own."""

    path: Path

    def write(self, at: float, events: Iterator[Event]) -> None:
        lines = [json.dumps({"at": round(at, 3), "event": event, **fields}) + "\n" for event, fields in events]
        with self.path.open("a", encoding="ascii") as file:
            file.writelines(lines)
            size = file.tell()
        if size > MAX_LOG_BYTES:
            self.path.replace(self.path.with_name(self.path.name + ".1"))


@dataclass
class LedgerWriter:
    """Writes the rows of each second. `began_ms`: when the run began."""

    path: Path
    began_ms: int
    peers: list[PeerId]
    ledger: Ledger = field(init=False)
    _presences: list[int] = field(default_factory=list)
    _rng: random.Random = field(default_factory=lambda: random.Random(0))

    def __post_init__(self) -> None:
        self.open()
        self.ledger.training.begin_incarnation(0, self.began_ms)
        for number, peer in enumerate(self.peers):
            row = PeerRow(
                peer=peer, name=f"node {number}", role="rollout", engine="vllm", machine="8 cores",
                micros_per_hour=100_000, currency="USD",
            )  # fmt: skip
            self._presences.append(self.ledger.peers.peer_joined(row, self.began_ms))

    def open(self) -> None:
        """Open the ledger, which belongs to one thread from then on."""
        self.ledger = Ledger(self.path, swarm=digest_of(b"a swarm"))

    def write(self, second: int) -> None:
        """Write one training step, and what led to it."""
        step, now_ms = second + 1, self.began_ms + 1000 * second
        leases = [LeaseId((GROUPS * step + place).to_bytes(16, "big")) for place in range(GROUPS)]
        by = {lease: self.peers[(step + place) % len(self.peers)] for place, lease in enumerate(leases)}
        issued = [
            LeaseRow(
                lease=lease, peer=peer, task="reverse", prompt=step, rollouts=GROUP, issued_ms=now_ms - 500,
                deadline_ms=now_ms + 60_000, envelope=b"lease",
            )
            for lease, peer in by.items()
        ]  # fmt: skip
        self.ledger.work.leases_issued(issued)
        rows = [
            RecordRow(
                record=RecordId(digest_of(lease + bytes([index]))), lease=lease, index=index, peer=peer,
                rule=Rule.ADMITTED, reward=self._rng.random(), tokens=225, version=PolicyVersion(1, max(0, step - 2)),
                lag=1, received_ms=now_ms, generation_ms=400, detail="", envelope=b"record",
            )
            for lease, peer in by.items()
            for index in range(GROUP)
        ]  # fmt: skip
        self.ledger.work.deliveries_judged(rows, dict.fromkeys(leases, b"receipt"), now_ms)
        if step % HEARTBEAT_S == 0:
            here = [PresenceRow(presence=one, bytes_up=step * 1000, bytes_down=step * 9000) for one in self._presences]
            self.ledger.peers.peers_present(here, now_ms)
        row = StepRow(
            step=step, incarnation=1, began_ms=now_ms, waited_s=0.2, train_s=0.7, rollouts=len(rows), tokens=3600,
            reward=0.5, metrics={"loss": 0.1, "entropy": 0.4, "mismatch_kl": 0.01, "ess": 0.95, "clip_share": 0.02},
        )  # fmt: skip
        kinds = {TimeKind.TRAINING: 0.7, TimeKind.WAITING: 0.2, TimeKind.PUBLICATION: 0.1}
        passed = TimeRow(from_ms=now_ms - 300, until_ms=now_ms + 700, step=step, time=LearnerTime(kinds))
        self.ledger.training.step_trained(row, dict.fromkeys(leases, 1), {}, passed)
        version = PolicyVersion(1, step)
        name = ManifestHash(digest_of(str(version).encode()))
        self.ledger.training.version_published(version, name, now_ms, total_bytes=2_000_000, new_bytes=200_000)
        if step % EVALUATE_EVERY == 0:
            self.ledger.training.evaluated(version, now_ms, prompts=512, greedy=0.7, sampled=0.65)
