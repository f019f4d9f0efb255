"""Write ledgers of invented runs through `learner.ledger.ledger.Ledger`, as a learner writes them."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from learner.ledger.ledger import Ledger
from learner.ledger.queries.reader import read_ledger
from learner.ledger.rows import CheckpointRow, LeaseRow, PeerRow, PlanRow, PresenceRow, RecordRow, StepRow, TimeRow
from learner.provisioning.estimation.learner_time import LearnerTime, TimeKind
from learner.rollouts.admission import EpisodeSlots
from learner.trust.relay_credit import Credit
from protocol.accounting.claims import EnergySource
from protocol.core.digest import digest_of
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId, ManifestHash, PeerId, PolicyVersion, RecordId
from protocol.work import Rule

SWARM = digest_of(b"a swarm")
START_MS = 1_760_000_000_000


def key(number: int) -> Keypair:
    return Keypair(number.to_bytes(32, "big"))


LEARNER = key(1).peer_id
ALPHA, BETA, GAMMA = (key(n).peer_id for n in (2, 3, 4))


def checkpoints_in(path: Path) -> tuple[bytes, list[CheckpointRow]]:
    """Return the swarm's id and the durable states, newest first, of the ledger at `path`."""
    with read_ledger(path) as ledger:
        return ledger.training.swarm(), ledger.training.checkpoints()


def peer_row(peer: PeerId, name: str, *, role: str = "rollout", micros: int = 0, currency: str = "USD") -> PeerRow:
    return PeerRow(
        peer=peer, name=name, role=role, engine="fake", machine="2 cores", micros_per_hour=micros, currency=currency
    )


@dataclass
class Story:
    """A ledger that a test writes. `now_s` counts from START_MS; leases and records are numbered. Up to `told_ms` the
    kinds of the learner's time are written, too.
    """

    ledger: Ledger
    now_s: float = 0.0
    leases: int = 0
    told_ms: int = START_MS
    presences: dict[PeerId, int] = field(default_factory=dict)

    @property
    def now_ms(self) -> int:
        return START_MS + round(self.now_s * 1000)

    def join(self, row: PeerRow) -> int:
        self.presences[row.peer] = self.ledger.peers.peer_joined(row, self.now_ms)
        return self.presences[row.peer]

    def here(
        self, peer: PeerId, *, up: int = 0, down: int = 0, reason: str = "", standby_s: float = 0.0, **joules: float
    ) -> None:
        """Record that a peer is present, or was until now, with its bytes and standby time since it came, and joules by
        source.
        """
        row = PresenceRow(
            presence=self.presences[peer], bytes_up=up, bytes_down=down, reason=reason, standby_s=standby_s,
            energy={EnergySource(source): amount for source, amount in joules.items()},
        )  # fmt: skip
        self.ledger.peers.peers_present([row], self.now_ms)

    def relay(self, receiver: PeerId, version: PolicyVersion, shares: dict[PeerId, int]) -> None:
        """Credit the peers of `shares` for the bytes of `version` that they gave `receiver`."""
        manifest = ManifestHash(digest_of(str(version).encode()))
        credit = Credit(receiver=receiver, manifest=manifest, shares=shares, raw=b"receipt")
        self.ledger.peers.relays_credited([credit], self.now_ms)

    def lease(self, peer: PeerId, rollouts: int = 4, *, place: EpisodeSlots | None = None) -> LeaseId:
        self.leases += 1
        lease = LeaseId(self.leases.to_bytes(16, "big"))
        row = LeaseRow(
            lease=lease, peer=peer, task="reverse", prompt=self.leases, rollouts=rollouts,
            issued_ms=self.now_ms, deadline_ms=self.now_ms + 60_000, envelope=b"lease", place=place,
        )  # fmt: skip
        self.ledger.work.leases_issued([row])
        return lease

    def deliver(
        self, lease: LeaseId, peer: PeerId, *rules: Rule, version: PolicyVersion, lag: int = 0, tokens: int = 10
    ) -> None:
        rows = [
            RecordRow(
                record=RecordId(digest_of(lease + bytes([index]))),
                lease=lease,
                index=index,
                peer=peer,
                rule=rule,
                reward=0.5 if rule is Rule.ADMITTED else None,
                tokens=tokens,
                version=version,
                lag=lag,
                received_ms=self.now_ms,
                generation_ms=500,
                detail="" if rule is Rule.ADMITTED else rule.value,
                envelope=b"record",
            )
            for index, rule in enumerate(rules)
        ]
        orphaned = sum(row.tokens for row in rows if row.rule is Rule.ORPHANED)
        self.ledger.work.deliveries_judged(
            rows, {lease: b"receipt"}, self.now_ms, {lease: orphaned} if orphaned else None
        )

    def train(
        self,
        step: int,
        lags: dict[LeaseId, int],
        *,
        incarnation: int = 1,
        reward: float = 0.5,
        waited_s: float = 1.0,
        train_s: float = 3.0,
        dropped: dict[LeaseId, str] | None = None,
        metrics: dict[str, Any] | None = None,
        tells_time: bool = True,
    ) -> None:
        row = StepRow(
            step=step, incarnation=incarnation, began_ms=self.now_ms, waited_s=waited_s, train_s=train_s,
            rollouts=4 * len(lags), tokens=40 * len(lags), reward=reward, metrics=metrics or {"loss": 0.1},
        )  # fmt: skip
        self.ledger.training.step_trained(row, lags, dropped or {}, self._passed(row) if tells_time else None)

    def _passed(self, row: StepRow) -> TimeRow:
        """Return the kinds of the learner's time since the step before: the rest counts as publication."""
        until_ms = row.began_ms + round(1000 * row.train_s)
        from_ms = min(self.told_ms, row.began_ms - round(1000 * row.waited_s))
        rest_s = (until_ms - from_ms) / 1000 - row.waited_s - row.train_s
        kinds = {TimeKind.TRAINING: row.train_s, TimeKind.WAITING: row.waited_s, TimeKind.PUBLICATION: max(0.0, rest_s)}
        self.told_ms = until_ms
        return TimeRow(from_ms=from_ms, until_ms=until_ms, step=row.step, time=LearnerTime(kinds))

    def publish(self, version: PolicyVersion, *, total: int = 2_000_000, new: int = 2_000_000) -> None:
        manifest = ManifestHash(digest_of(str(version).encode()))
        self.ledger.training.version_published(version, manifest, self.now_ms, total_bytes=total, new_bytes=new)

    def evaluate(self, version: PolicyVersion, greedy: float, sampled: float) -> None:
        self.ledger.training.evaluated(version, self.now_ms, prompts=512, greedy=greedy, sampled=sampled)

    def plan(self, *active: PeerId, micros: int = 0, kappa: int = 1, reasons: tuple[str, ...] = ()) -> None:
        self.ledger.peers.planned(
            PlanRow(at_ms=self.now_ms, kappa=kappa, active=active, micros_per_hour=micros, reasons=reasons)
        )

    def checkpoint(self, step: int, incarnation: int = 1) -> None:
        row = CheckpointRow(step=step, incarnation=incarnation, directory="checkpoint", state={})
        self.ledger.training.checkpointed(row, self.now_ms)


def open_story(path: Path) -> Story:
    story = Story(ledger=Ledger(path, swarm=SWARM))
    story.ledger.training.begin_incarnation(0, story.now_ms)
    return story


def demo_run(path: Path, *, steps: int = 40, seed: int = 0, restart_at: int | None = None) -> None:
    """Write a run that looks like the demo: three peers of different speed, a policy that learns, some
    stale records.
    """
    rng = random.Random(seed)
    story = open_story(path)
    story.join(peer_row(LEARNER, "learner", role="learner", micros=400_000))
    for peer, name, micros in (
        (ALPHA, "atlas", 250_000),
        (BETA, "borealis", 120_000),
        (GAMMA, "a laptop in the attic", 0),
    ):
        story.join(peer_row(peer, name, micros=micros))
    incarnation, step = 1, 0
    story.publish(PolicyVersion(1, 0))
    story.evaluate(PolicyVersion(1, 0), 0.42, 0.37)
    while step < steps:
        step += 1
        head = PolicyVersion(incarnation, step)
        lags: dict[LeaseId, int] = {}
        for peer, share in ((ALPHA, 8), (BETA, 6), (GAMMA, 2)):
            for _ in range(share):
                lease = story.lease(peer, 16)
                lag = min(rng.choice((0, 0, 0, 1, 1, 2)), step)
                stale = rng.random() < 0.02
                rule = Rule.STALE if stale else Rule.ADMITTED
                story.deliver(lease, peer, *[rule] * 16, version=head, lag=3 if stale else lag, tokens=7)
                if not stale:
                    lags[lease] = lag
        if rng.random() < 0.1:
            story.ledger.work.leases_closed([story.lease(GAMMA)], "expired", story.now_ms)
        story.now_s += rng.uniform(0.2, 0.6)
        learned = 1 / (1 + math.exp(-(step - 12) / 5))
        story.train(
            step,
            lags,
            incarnation=incarnation,
            reward=min(1.0, 0.36 + 0.6 * learned + rng.gauss(0, 0.03)),
            waited_s=0.4,
            train_s=2.5,
        )
        story.now_s += 3.0
        story.publish(head)
        story.relay(BETA, head, {ALPHA: 1_000_000})
        story.relay(GAMMA, head, {ALPHA: 500_000, BETA: 300_000})
        if step % 4 == 0 or step == steps:
            story.evaluate(head, min(1.0, 0.4 + 0.58 * learned), min(1.0, 0.36 + 0.58 * learned))
        if step == restart_at:
            restart_at = None
            story.now_s += 20
            story.told_ms = story.now_ms  # no learner ran meanwhile
            incarnation, step = story.ledger.training.begin_incarnation(step - 3, story.now_ms), step - 3
            story.publish(PolicyVersion(incarnation, step))
        for peer, pace in ((LEARNER, 0), (ALPHA, 40_000), (BETA, 30_000), (GAMMA, 9_000)):
            story.here(peer, up=step * (pace or 4_000_000), down=step * (2_000_000 if pace else 80_000))
    story.ledger.close()
