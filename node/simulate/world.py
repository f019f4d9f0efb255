"""A learner and its rollout nodes in virtual time: the cores that run in a real one, and machines that are figures.

What is the same code: which leases are granted (`learner.workload`, `learner.leasing`, `learner.speed`), what waits
and what is too old (`learner.buffer`, `protocol.staleness`), what is estimated and recorded (`learner.provisioning`).
What is imitated, as `node.rollout_role` and `node.training_loop` do it: an engine that does one batch at a time, with
one more batch of leases waiting; a version that is installed between two batches; a trainer that takes its time; a
source that sends one version at a time and skips what was overtaken. What always holds: the same seed gives the same
run; time moves from one event to the next, so an hour costs what happens in it and not an hour.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count

from learner.buffer import Buffer, Completion, Group
from learner.intake import GrantedLease
from learner.leasing import LeaseTerms, Leasing, Prompt
from learner.provisioning.recording import (
    Began,
    Delivered,
    Installed,
    Joined,
    Left,
    Published,
    Recorded,
    Stepped,
    Withdrawn,
)
from learner.workload import Worker, Workload
from node.simulate.machines import Change, Luck, Machine, log_normal
from protocol.ids import ManifestHash, PeerId, PolicyVersion
from protocol.staleness import Admissibility, Chain, judge

SILENCE_S = 20.0
"""A machine that was taken away is missed after four heartbeats of 5 s."""

_PROMPT = Prompt(task="simulated", index=0, tokens=(1,))
_COMPLETION = Completion(tokens=(1,), logprobs=(0.0,), reward=0.0)
_MANIFEST = ManifestHash(bytes(32))


@dataclass(frozen=True, kw_only=True)
class Learning:
    """What the operator set, and what training takes.

    Args:
        rollouts: R.
        group_size: rollouts of one lease.
        staleness: S; 0 is the sequential mode.
        kappa: training steps between published versions.
        train_s: T_train without the publication.
        train_spread: its standard deviation over its mean (log-normal).
        publish_s: what saving, exporting and signing take, while nothing is trained.
        broadcast_s: so long is the source busy with one version.
        ahead: batches leased or waiting at most; None: by what is measured.
        lease_s: a lease that is not delivered by then is withdrawn.
    """

    rollouts: int
    group_size: int
    staleness: int
    kappa: int
    train_s: float
    train_spread: float = 0.0
    publish_s: float = 0.0
    broadcast_s: float = 0.0
    ahead: float | None = None
    lease_s: float = 1e6


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """What somebody did from when until when: `version` it trained, sent or generated with."""

    row: str
    from_s: float
    until_s: float
    version: int


@dataclass(kw_only=True)
class Outcome:
    """What happened. Steps are in order; `waited_s` before and `busy_s` during each."""

    waited_s: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)
    lags: Counter[int] = field(default_factory=Counter)
    completed: int = 0
    stale: int = 0
    lost: int = 0
    on_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    cost: float = 0.0
    ended_s: float = 0.0
    spans: list[Span] = field(default_factory=list)

    def wait_s(self, skip: int = 0) -> float:
        """Seconds that the learner waited per training step, without the first `skip`."""
        waited = self.waited_s[skip:]
        return math.fsum(waited) / len(waited) if waited else math.inf

    def utilisation(self, skip: int = 0) -> float:
        """The share of its time that the learner trained."""
        busy, waited = math.fsum(self.busy_s[skip:]), math.fsum(self.waited_s[skip:])
        return busy / (busy + waited) if busy + waited > 0 else 0.0

    @property
    def stale_share(self) -> float:
        """Rollouts that were made and grew too old, of all that were made."""
        return self.stale / self.completed if self.completed else 0.0


class World:
    """See the module's paragraph. `watch` is told everything that a real learner would record."""

    def __init__(
        self,
        learning: Learning,
        machines: Sequence[Machine],
        *,
        seed: int = 0,
        watch: Callable[[Recorded], None] = lambda event: None,
        spans: int = 0,
    ) -> None:
        numbers = count(1)
        self.learning, self.seed, self.watch = learning, seed, watch
        self.outcome = Outcome()
        self._spans = spans
        self._random = random.Random(f"{seed}/learner")
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.now_s = 0.0
        self.workload = Workload(
            window=learning.staleness,
            batch=learning.rollouts,
            chain=Chain(bases=(0,), head=PolicyVersion(1, 0)),
            buffer=Buffer(window=learning.staleness),
            leasing=Leasing(
                terms=LeaseTerms(
                    group_size=learning.group_size,
                    temperature=1.0,
                    max_new_tokens=1,
                    stop_ids=(),
                    deadline_s=learning.lease_s,
                ),
                secret=bytes(32),
                new_id=lambda: next(numbers).to_bytes(16, "big"),
            ),
            next_prompt=lambda: _PROMPT,
            ahead=learning.ahead,
        )
        self.nodes = {PeerId(machine.name): Node(self, machine) for machine in machines}
        self._sending: tuple[PolicyVersion, float] | None = None
        self._unsent: PolicyVersion | None = None
        self._waiting_since = 0.0
        self._busy_since = 0.0
        self._batch_lags: Counter[int] = Counter()
        self._stale_now = 0

    @property
    def now_ms(self) -> int:
        return round(1000 * self.now_s)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do it then."""
        if delay_s < math.inf:
            heapq.heappush(self._queue, (self.now_s + delay_s, next(self._order), action))

    def run(self, *, steps: int | None = None, until_s: float = math.inf) -> Outcome:
        """Go on until so many training steps are done, or that time; it may be called again."""
        if not self.outcome.ended_s and not self._queue:
            self._begin()
        while self._queue and (steps is None or len(self.outcome.busy_s) < steps):
            if self._queue[0][0] > until_s:
                self.now_s = until_s
                break
            self.now_s, _, action = heapq.heappop(self._queue)
            action()
        for node in self.nodes.values():
            node.account()
        self.outcome.ended_s = self.now_s
        return self.outcome

    def _begin(self) -> None:
        learning = self.learning
        self.watch(
            Began(
                at_s=0.0,
                swarm="simulated",
                mode="async" if learning.staleness else "sequential",
                rollouts=learning.rollouts,
                group_size=learning.group_size,
                staleness=learning.staleness,
                kappa=learning.kappa,
            )
        )
        for node in self.nodes.values():
            node.plan()
        self._publish()

    # The learner

    def _publish(self) -> None:
        version = self.workload.chain.head
        oldest = version.version - self.learning.staleness
        self.workload.manifests = {v: m for v, m in self.workload.manifests.items() if v.version >= oldest}
        self.workload.manifests[version] = _MANIFEST
        self.watch(Published(at_s=self.now_s, version=version.version))
        self._unsent = version
        self._send()

    def _send(self) -> None:
        """The source sends the newest version when it is done with the one before."""
        if self._sending is not None or self._unsent is None:
            return
        version, self._unsent = self._unsent, None
        self._sending = version, self.now_s
        self.after(self.learning.broadcast_s, self._sent)
        for node in self.nodes.values():
            node.send(version)

    def _sent(self) -> None:
        assert self._sending is not None
        version, since_s = self._sending
        self.mark("broadcast", since_s, version.version)
        self._sending = None
        self._send()

    @property
    def newest_sent(self) -> PolicyVersion | None:
        """What who comes now can fetch."""
        return self._sending[0] if self._sending is not None else max(self.workload.manifests, default=None)

    def serve(self, only: PeerId | None = None) -> None:
        """Grant what can be granted."""
        for peer, leases in self.workload.serve(self.now_ms, only):
            self.nodes[peer].granted(leases)

    def collect(self) -> None:
        """Take a batch if it is complete."""
        work = self.workload
        if work.busy:
            return
        before = len(work.buffer)
        batch = work.buffer.take(work.batch, work.chain)
        if batch is None:
            if (stale := before - len(work.buffer)) > 0:
                self._drop(stale)
                self.serve()
            return
        self._drop(before - len(work.buffer) - batch.rollouts)
        self._batch_lags = Counter()
        for group in batch.groups:
            self._batch_lags[batch.lags[group.lease]] += len(group.completions)
        self.outcome.waited_s.append(self.now_s - self._waiting_since)
        self._busy_since = self.now_s
        work.busy, work.busy_since_ms, work.collecting = True, self.now_ms, work.chain.head.version + 1
        self.serve()
        self.after(self.learning.train_s * log_normal(self._random, self.learning.train_spread), self._trained)

    def _drop(self, stale: int) -> None:
        self.outcome.stale += stale
        self._stale_now += stale

    def _trained(self) -> None:
        work = self.workload
        work.chain = work.chain.advanced()
        if work.chain.head.version % self.learning.kappa == 0:
            self.after(self.learning.publish_s, lambda: self._ready(published=True))
        else:
            self._ready(published=False)

    def _ready(self, *, published: bool) -> None:
        work, outcome = self.workload, self.outcome
        if published:
            self._publish()
        work.busy = False
        outcome.busy_s.append(self.now_s - self._busy_since)
        outcome.lags += self._batch_lags
        self.mark("train", self._busy_since, work.chain.head.version)
        self.watch(
            Stepped(
                at_s=self.now_s,
                step=work.chain.head.version,
                waited_s=outcome.waited_s[-1],
                busy_s=outcome.busy_s[-1],
                publish_s=self.learning.publish_s if published else 0.0,
                rollouts=self._batch_lags.total(),
                lags=dict(self._batch_lags),
                stale=self._stale_now,
            )
        )
        self._stale_now = 0
        self._waiting_since = self.now_s
        recent = sorted(outcome.busy_s[-8:])
        work.measure(recent[len(recent) // 2])
        self.serve()
        self.collect()

    def deliver(self, node: Node, granted: GrantedLease, version: PolicyVersion, started_s: float) -> None:
        """A lease arrived, and is judged."""
        work, size = self.workload, len(granted.lease.seeds)
        self.outcome.completed += size
        if work.leasing.take(granted.id, node.peer) is None:
            self._drop(size)
            return
        admitted = judge(work.chain, [version], work.window) is Admissibility.ADMISSIBLE
        if admitted:
            work.buffer.add(
                Group(
                    lease=granted.id,
                    peer=node.peer,
                    prompt_index=0,
                    prompt=(1,),
                    completions=(_COMPLETION,) * size,
                    behaviour=frozenset([version]),
                )
            )
        else:
            self._drop(size)
        work.leasing.close(granted.id)
        work.delivered(node.peer, granted.id, self.now_ms)
        self.watch(
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

    def lose(self, peer: PeerId, leases: Sequence[GrantedLease], status: str) -> None:
        """Leases ended without a delivery."""
        rollouts = sum(len(granted.lease.seeds) for granted in leases)
        self.outcome.lost += rollouts
        if rollouts:
            self.watch(Withdrawn(at_s=self.now_s, peer=peer, rollouts=rollouts, status=status))
            self.serve()

    def mark(self, row: str, from_s: float, version: int) -> None:
        """Remember a span for the picture, as long as there is room."""
        if len(self.outcome.spans) < self._spans:
            self.outcome.spans.append(Span(row=row, from_s=from_s, until_s=self.now_s, version=version))


class Node:
    """One rollout node: what it has, holds and does."""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world, self.machine, self.peer = world, machine, PeerId(machine.name)
        self.luck = Luck(machine, world.seed)
        self.price, self.speed, self.delay = machine.price, 1.0, 1.0
        self.present = False
        self.installed: PolicyVersion | None = None
        self.arrived: PolicyVersion | None = None
        self._life = 0
        self._since_s = 0.0
        self._busy = False
        self._asking = False
        self._waiting: list[GrantedLease] = []

    @property
    def worker(self) -> Worker:
        """It, as the learner knows it."""
        return self.world.workload.worker(self.peer)

    def plan(self) -> None:
        """Write what is known to happen into the world's calendar."""
        world, machine = self.world, self.machine
        absences = sorted(machine.absences, key=lambda absence: absence.from_s)
        if not any(absence.from_s <= 0 for absence in absences):
            self.join()
        for absence in absences:
            if absence.from_s > 0:
                world.after(absence.from_s, self.leave)
            world.after(absence.until_s, self.join)
        for change in machine.changes:
            world.after(change.at_s, partial(self._change, change))

    def _change(self, change: Change) -> None:
        self.account()
        self.price = self.price if change.price is None else change.price
        self.speed = self.speed if change.speed is None else change.speed
        self.delay = self.delay if change.delay is None else change.delay

    def account(self) -> None:
        """Charge what was used until now."""
        if self.present:
            on_s = self.world.now_s - self._since_s
            self.world.outcome.on_s[self.machine.name] += on_s
            self.world.outcome.cost += self.price * on_s / 3600
        self._since_s = self.world.now_s

    def join(self) -> None:
        """Come, fetch the newest version, ask for work."""
        if self.present:
            return
        self.account()
        self.present, self._life = True, self._life + 1
        self.world.watch(Joined(at_s=self.world.now_s, peer=self.peer, name=self.machine.name, price=self.price))
        self._soon(self.luck.up_s(), self._taken_away)
        self._soon(self.machine.start_s, self._fetch_newest)

    def _fetch_newest(self) -> None:
        if (newest := self.world.newest_sent) is not None:
            self.send(newest)

    def _taken_away(self) -> None:
        self.leave()
        self.world.after(self.luck.away_s(), self.join)

    def leave(self) -> None:
        """Be gone without a word."""
        if not self.present:
            return
        self.account()
        world, peer = self.world, self.peer
        self.present, self._life = False, self._life + 1
        self.installed = self.arrived = None
        self._busy = self._asking = False
        self._waiting = []
        world.workload.withdraw(peer)
        world.after(SILENCE_S, self._missed)

    def _missed(self) -> None:
        """The learner notices the silence; whoever is back by then was let go when it came."""
        world, leasing = self.world, self.world.workload.leasing
        if not self.present:
            world.workload.forget(self.peer)
            world.watch(Left(at_s=world.now_s, peer=self.peer, reason="silent"))
        gone = leasing.release(self.peer)
        world.workload.withdrawn(granted.id for granted in gone)
        world.lose(self.peer, gone, "lost")

    def _soon(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do it then, unless the machine was taken away meanwhile."""
        life = self._life
        self.world.after(delay_s, lambda: action() if self._life == life else None)

    # Versions

    def send(self, version: PolicyVersion) -> None:
        """A version is on its way here."""
        if self.present:
            self._soon(self.luck.broadcast_s(self.machine.broadcast_s * self.delay), lambda: self._arrive(version))

    def _arrive(self, version: PolicyVersion) -> None:
        if self.arrived is None or version > self.arrived:
            self.arrived = version
            self._next()

    def _install(self) -> None:
        self._busy = True
        version = self.arrived
        assert version is not None
        self._soon(self.machine.install_s, lambda: self._installed(version))

    def _installed(self, version: PolicyVersion) -> None:
        world = self.world
        self._busy = False
        self.installed = self.worker.installed = version
        world.watch(Installed(at_s=world.now_s, peer=self.peer, version=version.version))
        self._next()
        world.serve(self.peer)

    # Work

    def _next(self) -> None:
        """Do what is due: install what is newer, else generate what was leased, and have more leases waiting."""
        if self._busy:
            return
        if self.arrived is not None and self.arrived != self.installed:
            self._install()
            return
        self._generate()
        self._ask()

    def _ask(self) -> None:
        if not self._asking and not self._waiting and self.installed is not None:
            self._asking = True
            self._soon(self.machine.line_s, self._asked)

    def _asked(self) -> None:
        self.world.workload.ask(self.peer, self.machine.batch_rollouts)
        self.world.serve(self.peer)

    def granted(self, leases: list[GrantedLease]) -> None:
        """Leases are on their way here."""
        self._soon(self.machine.line_s, lambda: self._received(leases))

    def _received(self, leases: list[GrantedLease]) -> None:
        self._asking = False
        self._waiting = leases
        self._next()

    def _generate(self) -> None:
        """Begin the batch that waits, with what is installed, if that is new enough for it."""
        world, leases, version = self.world, self._waiting, self.installed
        if not leases or version is None or version < max(granted.lease.minimum for granted in leases):
            return
        self._waiting, self._busy = [], True
        began_s = world.now_s
        for granted in leases:
            world.workload.started(self.peer, granted.id, version, world.now_ms)
        seconds = self.luck.generation_s(sum(len(granted.lease.seeds) for granted in leases), self.speed)
        self._soon(seconds, lambda: self._generated(leases, version, began_s))
        self._ask()

    def _generated(self, leases: list[GrantedLease], version: PolicyVersion, began_s: float) -> None:
        world = self.world
        world.mark(self.machine.name, began_s, version.version)
        self._busy = False
        for granted in leases:
            self._soon(self.machine.line_s, partial(world.deliver, self, granted, version, began_s))
        self._next()
