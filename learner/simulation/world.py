"""Simulate a learner and its rollout nodes in virtual time, with the real cores and with machines that are numbers.

These parts are the same code as in a real swarm: which leases are granted (`learner.scheduling.lease_scheduler`,
`learner.rollouts.open_leases`, `learner.scheduling.batch_speed`), what waits and what is too old
(`learner.rollouts.buffer`, `protocol.versions.staleness`), what is estimated, recorded and planned
(`learner.provisioning`).

The rest imitates `node.rollout_role.worker` and `node.learner_role.training.loop`. An engine does one batch at a time,
with one more batch of leases waiting, and a version is installed between two batches. A trainer takes its time. A
source sends one version at a time and skips overtaken ones.

Invariants:

- The same seed gives the same run.
- Time moves from one event to the next, so an hour costs what happens in it and not an hour.
"""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Protocol

from learner.provisioning.estimation.learner_time import LearnerTime, TimeKind, seconds_by_kind
from learner.provisioning.estimation.recording import (
    FORMAT,
    Began,
    Delivered,
    Published,
    Recorded,
    Stepped,
    Withdrawn,
)
from learner.rollouts.admission import GrantedLease
from learner.rollouts.buffer import Buffer, Completion, Group
from learner.rollouts.open_leases import LeaseTerms, Leasing, Prompt
from learner.scheduling.capacity import LeaseCapacity
from learner.scheduling.completion_lengths import CompletionLengths
from learner.scheduling.lease_scheduler import LeaseScheduler
from learner.simulation.event_queue import Calendar
from learner.simulation.machines import Machine, log_normal
from learner.simulation.rollout_node import Node
from learner.simulation.trace import LEARNER, NEVER_S, Learning, Outcome, Span
from learner.simulation.uplink import Source
from protocol.core.ids import LeaseId, ManifestHash, PeerId, PolicyVersion
from protocol.versions.staleness import Admissibility, Chain, judge

_PROMPT = Prompt(task="simulated", index=0, tokens=(1,))
_MANIFEST = ManifestHash(bytes(32))

SIMULATED = "simulated"
"""The swarm's name in a recording, whose time begins at 0."""


class Steering(Protocol):
    """Decides which nodes are active, and kappa, by calling `World.steer`. It hears all that is recorded."""

    def begin(self, world: World) -> None:
        """Begin with the world; no node is here yet."""

    def hear(self, event: Recorded) -> None:
        """Take in an event."""


class Generated(Protocol):
    """The prompts of a task, and how long their completions are."""

    @property
    def usual(self) -> float:
        """Tokens of a completion that takes as long as a machine's numbers say."""

    def next_prompt(self) -> Prompt | None:
        """Return the task's next prompt."""

    def alike(self, index: int) -> tuple[int, int]:
        """Return a prompt's problem and kind, see `CompletionLengths`."""

    def lengths(self, granted: GrantedLease) -> Sequence[int]:
        """Return the tokens of each completion of a lease; the same at every call."""


class World(Calendar):
    """The simulated swarm.

    Args:
        generated: prompts whose completions differ in length; None: all are alike.
        longest_first: whether prompts are leased longest first.
        seed: seed of all luck.
        watch: called with every event that a real learner would record.
        spans: how many of the last spans are remembered for a picture.
        steering: decides which nodes are active; without it, all are.
    """

    def __init__(
        self,
        learning: Learning,
        machines: Sequence[Machine],
        *,
        generated: Generated | None = None,
        longest_first: bool = False,
        seed: int = 0,
        watch: Callable[[Recorded], None] = lambda event: None,
        spans: int = 0,
        steering: Steering | None = None,
    ) -> None:
        super().__init__()
        self.learning, self.seed = learning, seed
        self.kappa = learning.kappa
        self.steering = steering
        self.outcome = Outcome(spans=deque(maxlen=spans))
        self._watch = watch
        self._random = random.Random(f"{seed}/learner")
        self.generated = generated
        self.workload = _scheduler(learning, generated, longest_first=longest_first)
        self.nodes = {PeerId(machine.name): Node(self, machine) for machine in machines}
        self.source = Source(self)
        self._waiting_since = 0.0
        self._busy_since = 0.0
        self._batch_lags: Counter[int] = Counter()
        self._stale_now = 0
        self._published = 0

    def tell(self, event: Recorded) -> None:
        """Record an event as a real learner would."""
        self._watch(event)
        if self.steering is not None:
            self.steering.hear(event)

    def run(self, *, steps: int | None = None, until_s: float = math.inf) -> Outcome:
        """Continue until this many training steps are done, or that time. It may be called again."""
        if not self.outcome.ended_s and self.is_empty:
            self._begin()
        self.go_on(until_s, lambda: steps is not None and len(self.outcome.busy_s) >= steps)
        for node in self.nodes.values():
            node.account()
            node.mark_idle()
        self.outcome.paid[LEARNER] = self.learning.price * self.now_s / 3600
        self.outcome.cost = math.fsum(self.outcome.paid.values())
        self.outcome.ended_s = self.now_s
        return self.outcome

    def steer(self, active: Collection[str], kappa: int, why: Callable[[str], str]) -> None:
        """Make these nodes active, by name, and put the others on standby, each with its reason."""
        self.kappa = kappa
        for node in self.nodes.values():
            if node.present:
                node.switch(active=node.peer in active, why=why)
        self.serve()

    def _begin(self) -> None:
        learning = self.learning
        self.tell(
            Began(
                at_s=0.0,
                format=FORMAT,
                swarm=SIMULATED,
                mode="async" if learning.staleness else "sequential",
                rollouts=learning.rollouts,
                group_size=learning.group_size,
                staleness=learning.staleness,
                kappa=learning.kappa,
                currency=learning.currency,
            )
        )
        if self.steering is not None:
            self.steering.begin(self)
        for node in self.nodes.values():
            node.plan()
        self._publish()
        if learning.lease_s < NEVER_S:
            self.after(learning.lease_s, self._expire)

    # The learner

    def _publish(self) -> None:
        version = self.workload.capacity.chain.head
        oldest = version.version - self.learning.staleness
        self.workload.capacity.manifests = {
            v: m for v, m in self.workload.capacity.manifests.items() if v.version >= oldest
        }
        self.workload.capacity.manifests[version] = _MANIFEST
        self.tell(Published(at_s=self.now_s, version=version.version))
        self.source.publish(version)

    def serve(self, only: PeerId | None = None) -> None:
        """Grant what can be granted."""
        if self.learning.barrier:
            if not self._is_level():
                return
            only = None
        for peer, leases in self.workload.serve(self.now_ms, only):
            self.nodes[peer].granted(leases)

    def _is_level(self) -> bool:
        """Return whether all active nodes have the newest version."""
        head = self.workload.capacity.chain.head
        return all(node.installed in (None, head) for node in self.nodes.values() if node.is_active)

    def collect(self) -> None:
        """Take a batch if it is complete."""
        capacity = self.workload.capacity
        if capacity.busy:
            return
        before = len(capacity.buffer)
        batch = capacity.buffer.take(capacity.batch, capacity.chain)
        if batch is None:
            if (stale := before - len(capacity.buffer)) > 0:
                self._drop(stale)
                self.serve()
            return
        self._drop(before - len(capacity.buffer) - batch.rollouts)
        self._batch_lags = Counter()
        for group in batch.groups:
            self._batch_lags[batch.lags[group.lease]] += len(group.completions)
        self.outcome.gathered_s.append(batch.gathered_s or 0.0)
        self.outcome.prompts += [group.prompt_index for group in batch.groups]
        self.outcome.waited_s.append(self.now_s - self._waiting_since)
        self._busy_since = self.now_s
        capacity.busy, capacity.busy_since_ms = True, self.now_ms
        capacity.collecting = capacity.chain.head.version + 1
        self.recall()
        self.serve()
        train_s = self.learning.train_s * log_normal(self._random, self.learning.train_spread)
        self.after(train_s + self.learning.overhead_s, self._trained)

    def _drop(self, stale: int) -> None:
        self.outcome.stale += stale
        self._stale_now += stale

    def _trained(self) -> None:
        capacity = self.workload.capacity
        capacity.chain = capacity.chain.advance()
        if capacity.chain.head.version >= self._published + self.kappa:
            self._published = capacity.chain.head.version
            self.after(self.learning.publish_s, lambda: self._ready(published=True))
        else:
            self._ready(published=False)

    def _ready(self, *, published: bool) -> None:
        work, outcome = self.workload, self.outcome
        if published:
            self._publish()
        work.capacity.busy = False
        publish_s = self.learning.publish_s if published else 0.0
        outcome.busy_s.append(self.now_s - self._busy_since)
        outcome.lags += self._batch_lags
        self.mark(LEARNER, self._busy_since, work.capacity.chain.head.version)
        self.tell(
            Stepped(
                at_s=self.now_s,
                step=work.capacity.chain.head.version,
                waited_s=outcome.waited_s[-1],
                busy_s=outcome.busy_s[-1],
                publish_s=publish_s,
                rollouts=self._batch_lags.total(),
                lags=dict(self._batch_lags),
                stale=self._stale_now,
                time=self._time(publish_s),
            )
        )
        self._stale_now = 0
        self._waiting_since = self.now_s
        recent = sorted(outcome.busy_s[-8:])
        work.measure(recent[len(recent) // 2])
        self.serve()
        self.collect()

    def _time(self, publish_s: float) -> dict[str, float]:
        """Return the kinds of the last step's time."""
        learning, busy_s = self.learning, self.outcome.busy_s[-1]
        if not learning.tells_kinds:
            return {}
        kinds = {
            TimeKind.TRAINING: max(0.0, busy_s - publish_s - learning.overhead_s),
            TimeKind.WAITING: self.outcome.waited_s[-1],
            TimeKind.PUBLICATION: publish_s,
            TimeKind.BATCH: learning.overhead_s,
        }
        return seconds_by_kind(LearnerTime({kind: seconds for kind, seconds in kinds.items() if seconds > 0}))

    def relative_lengths(self, granted: GrantedLease) -> list[float]:
        """Return the length of each completion of a lease relative to the mean; nothing if all are alike."""
        if self.generated is None:
            return []
        return [tokens / self.generated.usual for tokens in self.generated.lengths(granted)]

    def deliver(self, node: Node, granted: GrantedLease, version: PolicyVersion, started_s: float) -> None:
        """Judge a lease that arrived."""
        work, size = self.workload, len(granted.lease.seeds)
        self.outcome.completed += size
        if work.capacity.leasing.take(granted.id, node.peer) is None:
            self._drop(size)
            return
        admitted = judge(work.capacity.chain, [version], work.capacity.window) is Admissibility.ADMISSIBLE
        if admitted:
            made = Completion(tokens=(1,), logprobs=(0.0,), reward=0.0, spans=((1, version),))
            if self.generated is not None:
                work.learn_length(granted, self.generated.lengths(granted))
            work.capacity.buffer.add(
                Group(
                    lease=granted.id,
                    peer=node.peer,
                    prompt_index=granted.prompt_index,
                    prompt=(1,),
                    completions=(made,) * size,
                    behaviour=frozenset([version]),
                    leased_ms=granted.lease.issued_ms,
                    came_ms=self.now_ms,
                )
            )
            self.outcome.made[node.machine.name] += size
        else:
            self._drop(size)
        work.capacity.leasing.close(granted.id)
        work.delivered(node.peer, granted.id, self.now_ms)
        work.judged_lease(node.peer, is_admitted=admitted, now_ms=self.now_ms)
        self.tell(
            Delivered(
                at_s=self.now_s,
                peer=node.peer,
                admitted=size if admitted else 0,
                refused=0 if admitted else size,
                version=version.version,
                leased_s=granted.lease.issued_ms / 1000,
                started_s=started_s,
            )
        )
        if admitted:
            self.collect()
        else:
            self.serve()

    def recall(self, only: LeaseId | None = None) -> None:
        """Send recalls of leases that have become hopeless, or of one."""
        by_peer: dict[PeerId, list[LeaseId]] = {}
        for granted in self.workload.recall(self.now_ms, only):
            by_peer.setdefault(granted.peer, []).append(granted.id)
        for peer, leases in by_peer.items():
            self.nodes[peer].recalled(leases, self.workload.capacity.minimum)

    def return_leases(self, peer: PeerId, leases: Sequence[GrantedLease], status: str) -> None:
        """Take back leases that were recalled."""
        self.lose(peer, self.workload.returned(peer, [granted.id for granted in leases], self.now_ms), status)

    def lose(self, peer: PeerId, leases: Sequence[GrantedLease], status: str) -> None:
        """Record leases that ended without a delivery."""
        rollouts = sum(len(granted.lease.seeds) for granted in leases)
        if status == "recalled":
            self.outcome.recalled += rollouts
        elif status != "spared":
            self.outcome.lost += rollouts
        if rollouts:
            self.tell(Withdrawn(at_s=self.now_s, peer=peer, rollouts=rollouts, status=status))
            self.serve()

    def _expire(self) -> None:
        """Withdraw leases that are not delivered in time; this runs four times in the length of a lease."""
        for granted in self.workload.expire(self.now_ms, 0):
            self.lose(granted.peer, [granted], "expired")
        self.after(self.learning.lease_s / 4, self._expire)

    def mark(self, row: str, from_s: float, version: int, *, works: bool = True) -> None:
        """Remember a span for the picture."""
        self.outcome.spans.append(Span(row=row, from_s=from_s, until_s=self.now_s, version=version, works=works))


def _scheduler(learning: Learning, generated: Generated | None, *, longest_first: bool) -> LeaseScheduler:
    """Return the scheduler as a learner has it, with leases numbered from 1."""
    numbers = count(1)
    terms = LeaseTerms(
        group_size=learning.group_size, temperature=1.0, max_new_tokens=1, stop_ids=(), deadline_s=learning.lease_s
    )
    capacity = LeaseCapacity(
        window=learning.staleness,
        batch=learning.rollouts,
        chain=Chain(bases=(0,), head=PolicyVersion(1, 0)),
        buffer=Buffer(window=learning.staleness),
        leasing=Leasing(terms=terms, secret=bytes(32), new_id=lambda: next(numbers).to_bytes(16, "big")),
        ahead=learning.ahead,
    )
    if generated is None:
        return LeaseScheduler(capacity=capacity, next_prompt=lambda: _PROMPT)
    lengths = CompletionLengths(alike=generated.alike) if longest_first else None
    return LeaseScheduler(capacity=capacity, next_prompt=generated.next_prompt, lengths=lengths)
