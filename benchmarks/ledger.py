"""Claim "ledger": a million rollouts take at most 300 bytes each in the ledger, signatures included.

Bar: ledger_bytes_per_rollout, at most 300: bytes of a learner's ledger, all tables included, for each of a million
rollouts of 8 tokens, once they are older than `[swarm] keep_days` and `volery compact` was run. Rollouts are in groups
of 8, so one receipt covers about eight. A step uses 256 rollouts, and a tenth of the groups is audited.

The ledger is written by the functions that a learner calls, with signed receipts and payloads as large as real ones
(their bytes are random). No model runs. The figures beside the bar are the file's size before, and the time of packing,
of `report`, and of `why` for one record. If a receipt no longer reads as it was signed, the benchmark fails.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import Bar, BenchmarkError, arguments, conclude, main, number, say, scratch, table
from learner.ledger.compaction import size_of
from learner.ledger.ledger import Ledger
from learner.ledger.rows import AuditRow, CheckpointRow, LeaseRow, PeerRow, RecordRow, StepRow
from learner.ledger.trust import AuditOutcome
from learner.trust.audit_history import AuditHistory
from learner.trust.ban_evidence import Counted
from node.reports.explain.why import why_in_ledger
from node.reports.readers.ledger_report import swarm_report
from protocol.core.digest import digest_of
from protocol.core.envelope import sign
from protocol.core.genesis import certify_learner, found_swarm
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId, ManifestHash, PeerId, PolicyVersion, RecordId, SwarmId
from protocol.work import Receipt, Rule, Verdict

BYTES_AT_MOST = 300.0
ROLLOUTS = 1_000_000
GROUP, TOKENS, PER_STEP, PEERS = 8, 8, 256, 24
AUDITED = 0.1
CHECKPOINT_EVERY, CHECKPOINTS_KEPT = 10, 3
LEASE_BYTES, RECORD_BYTES = 420, 380
"""Bytes of the envelopes of a lease with a short prompt, and of a record of 8 tokens."""

START_MS = 1_760_000_000_000
STEP_MS = 3_000
SAMPLED = 997
"""Every 997th receipt is compared before and after."""


@dataclass(kw_only=True)
class Writer:
    """Writes a run to the ledger, step by step."""

    ledger: Ledger
    rng: random.Random
    learner: Keypair
    swarm: SwarmId
    certificate: bytes
    peers: tuple[PeerId, ...]
    checkpoints: list[int] = field(default_factory=list)

    def step(self, step: int) -> None:
        """Lease, judge, train and publish one step."""
        now_ms = START_MS + step * STEP_MS
        leases = [self._lease(step, number_, now_ms) for number_ in range(PER_STEP // GROUP)]
        self.ledger.work.leases_issued(leases)
        rows = {lease.lease: self._records(lease, step, now_ms) for lease in leases}
        receipts = {lease.lease: self._receipt(lease, rows[lease.lease], step, now_ms) for lease in leases}
        self.ledger.work.deliveries_judged([row for some in rows.values() for row in some], receipts, now_ms)
        audited = [lease for lease in leases if self.rng.random() < AUDITED]
        self.ledger.trust.audited([self._audit(lease, now_ms) for lease in audited])
        trained = StepRow(
            step=step, incarnation=1, began_ms=now_ms, waited_s=0.1, train_s=2.0, rollouts=PER_STEP,
            tokens=PER_STEP * TOKENS, reward=0.5, metrics={f"metric_{name}": self.rng.random() for name in range(12)},
        )  # fmt: skip
        self.ledger.training.step_trained(trained, dict.fromkeys(rows, 1), {})
        version = PolicyVersion(1, step)
        self.ledger.training.version_published(
            version, ManifestHash(digest_of(b"%d" % step)), now_ms, total_bytes=1 << 30, new_bytes=1 << 30
        )
        if step % CHECKPOINT_EVERY == 0:
            self._checkpoint(step, now_ms)

    def _lease(self, step: int, number_: int, now_ms: int) -> LeaseRow:
        return LeaseRow(
            lease=LeaseId(self.rng.randbytes(16)), peer=self.rng.choice(self.peers), task="reverse:letters=6",
            prompt=step * PER_STEP + number_, rollouts=GROUP, issued_ms=now_ms, deadline_ms=now_ms + 120_000,
            envelope=self.rng.randbytes(LEASE_BYTES),
        )  # fmt: skip

    def _records(self, lease: LeaseRow, step: int, now_ms: int) -> list[RecordRow]:
        return [
            RecordRow(
                record=RecordId(self.rng.randbytes(32)), lease=lease.lease, index=index, peer=lease.peer,
                rule=Rule.ADMITTED, reward=self.rng.choice((0.0, 1.0)), tokens=TOKENS,
                version=PolicyVersion(1, max(0, step - 1)), lag=1, received_ms=now_ms + index, generation_ms=480,
                detail="", envelope=self.rng.randbytes(RECORD_BYTES),
            )
            for index in range(GROUP)
        ]  # fmt: skip

    def _receipt(self, lease: LeaseRow, records: list[RecordRow], step: int, now_ms: int) -> bytes:
        receipt = Receipt(
            lease=lease.lease,
            peer=lease.peer,
            version=PolicyVersion(1, step),
            issued_ms=now_ms,
            tokens=GROUP * TOKENS,
            verdicts=[Verdict(record=r.record, index=r.index, rule=r.rule, reward=r.reward) for r in records],
            certificate=self.certificate,
        )
        return sign(self.learner, self.swarm, receipt)

    def _audit(self, lease: LeaseRow, now_ms: int) -> AuditOutcome:
        counts = tuple(Counted(above=0, trials=GROUP * TOKENS) for _ in range(6))
        row = AuditRow(
            lease=lease.lease, peer=lease.peer, at_ms=now_ms, tokens=GROUP * TOKENS, counts=counts, worst=0.001,
            evidence=-1.5, passed=True,
        )  # fmt: skip
        return AuditOutcome(row=row, known=AuditHistory(passed=1))

    def _checkpoint(self, step: int, now_ms: int) -> None:
        row = CheckpointRow(step=step, incarnation=1, directory=f"1.{step}", state={})
        self.ledger.training.checkpointed(row, now_ms, newest=CHECKPOINTS_KEPT)
        self.checkpoints.append(step)
        if len(self.checkpoints) > CHECKPOINTS_KEPT:
            self.ledger.training.checkpoints_removed([self.checkpoints.pop(0)])


def written(path: Path, rollouts: int, seed: int) -> bytes:
    """Write a run of this many rollouts; return the swarm's id."""
    operator, learner = Keypair(bytes([1]) * 32), Keypair(bytes([2]) * 32)
    _, authority = found_swarm(operator, name="ledger", created_ms=0, nonce=bytes(16))
    certificate = certify_learner(
        operator, authority, learner=learner.public, not_before_ms=0, not_after_ms=START_MS + 10**12
    )
    peers = tuple(Keypair(bytes([3, number_]) * 16).peer_id for number_ in range(PEERS))
    with Ledger(path, swarm=authority.swarm) as ledger:
        ledger.training.begin_incarnation(0, START_MS)
        for number_, peer in enumerate(peers):
            row = PeerRow(
                peer=peer, name=f"n{number_}", role="rollout", engine="vllm", machine="one GPU", micros_per_hour=0,
                currency="USD",
            )  # fmt: skip
            ledger.peers.peer_joined(row, START_MS)
        writer = Writer(
            ledger=ledger, rng=random.Random(seed), learner=learner, swarm=authority.swarm, certificate=certificate,
            peers=peers,
        )  # fmt: skip
        for step in range(1, rollouts // PER_STEP + 1):
            writer.step(step)
    return authority.swarm


def sampled(path: Path, swarm: bytes) -> list[bytes]:
    """Return a sample of the receipts, as they were signed."""
    with Ledger(path, swarm=swarm) as ledger:
        return [one.receipt for place, one in enumerate(ledger.evidence.receipts()) if place % SAMPLED == 0]


def benchmark() -> int:
    """Write, compact and measure a ledger; print the table and the verdict."""
    parser = arguments(__doc__ or "", reps=1)
    parser.add_argument("--rollouts", type=int, default=ROLLOUTS, help="fewer for a short run")
    options = parser.parse_args()
    with scratch(options.keep) as out:
        path = out / "ledger.sqlite"
        began = time.monotonic()
        swarm = written(path, options.rollouts, 0)
        say(f"written in {time.monotonic() - began:.0f} s")
        before, receipts = size_of(path), sampled(path, swarm)
        began = time.monotonic()
        with Ledger(path, swarm=swarm) as ledger:
            while ledger.compaction.pack_receipts(1 << 60):
                pass
            packing_s = time.monotonic() - began
            ledger.compaction.shrink()
        after = size_of(path)
        if sampled(path, swarm) != receipts:
            raise BenchmarkError("A receipt no longer reads as it was signed.")
        began = time.monotonic()
        swarm_report(path)
        report_s = time.monotonic() - began
        with Ledger(path, swarm=swarm) as ledger:
            ((record,),) = ledger.query("SELECT record FROM records WHERE rowid = ?", (options.rollouts // 3,))
        began = time.monotonic()
        why_in_ledger(path, record.hex())
        why_s = time.monotonic() - began
    each = after / options.rollouts
    rows = [
        ["bytes a rollout before", number(before / options.rollouts)],
        ["bytes a rollout after", number(each)],
        ["packing, s", number(packing_s)],
        ["report, s", number(report_s)],
        ["why of a record, s", number(why_s)],
    ]
    say(table(["", ""], rows))
    bars = [Bar(name="ledger_bytes_per_rollout", value=each, at_most=BYTES_AT_MOST)]
    figures = {
        "before": before / options.rollouts, "packing_s": packing_s, "report_s": report_s, "why_s": why_s,
    }  # fmt: skip
    return conclude("ledger", bars, figures)


if __name__ == "__main__":
    main(benchmark)
