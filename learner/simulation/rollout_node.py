"""Simulate a rollout node: it fetches, installs, generates and delivers as `node.rollout_role.worker` does.

Invariants:

- It does one thing at a time.
- A version is installed between two batches.
- A node that is taken away loses the leases that it holds, and those on their way to it are lost, too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from learner.provisioning.estimation.recording import Installed, Joined, Left
from learner.rollouts.admission import GrantedLease
from learner.scheduling.peer_load import Worker
from learner.simulation.machines import Change, Luck, Machine
from protocol.core.ids import LeaseId, PeerId, PolicyVersion

if TYPE_CHECKING:
    from learner.simulation.world import World

TIMEOUT_S = 20.0
"""Seconds until the learner notices that a machine was taken away: four heartbeats of 5 s."""

NEWCOMER = "On standby: the plan has not been reviewed since your machine came."


@dataclass(kw_only=True, eq=False, slots=True)
class Making:
    """The batch that an engine generates."""

    leases: list[GrantedLease]
    version: PolicyVersion
    began_s: float


class Node:
    """One rollout node: its versions, its leases, its work."""

    def __init__(self, world: World, machine: Machine) -> None:
        self.world, self.machine, self.peer = world, machine, PeerId(machine.name)
        self.luck = Luck(machine, world.seed)
        self.price, self.speed, self.delay = machine.price, 1.0, 1.0
        self.present = False
        self.is_active = False
        self.installed: PolicyVersion | None = None
        self.arrived: PolicyVersion | None = None
        self._life = 0
        self._since_s = 0.0
        self._idle_since_s = 0.0
        self._is_started = False
        self._is_paid_for = False
        self._busy = False
        self._asking = False
        self._waiting: list[GrantedLease] = []
        self._making: Making | None = None

    @property
    def worker(self) -> Worker:
        """The node as the learner knows it."""
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
        if self.is_active:
            active_s, outcome = self.world.now_s - self._since_s, self.world.outcome
            outcome.active_s[self.machine.name] += active_s
            outcome.paid[self.machine.name] += self.price * active_s / 3600
        self._since_s = self.world.now_s

    def switch(self, *, active: bool, why: Callable[[str], str]) -> None:
        """Become active, or go on standby for the reason that `why` gives: fetch and install versions, and do no
        work."""
        if active == self.is_active:
            return
        self.account()
        self.mark_idle()
        self.is_active = active
        self.worker.standby = "" if active else why(self.peer)
        if active and not self._is_paid_for:
            self._is_paid_for = True
            self.world.outcome.paid[self.machine.name] += self.machine.start_price

    def mark_idle(self) -> None:
        """Mark the time until now in which the node was on standby or away."""
        world = self.world
        if not self.is_active and world.now_s > self._idle_since_s:
            world.mark(self.machine.name, self._idle_since_s, 0, works=False)
        self._idle_since_s = world.now_s

    def join(self) -> None:
        """Join, fetch the newest version, ask for work."""
        world, machine = self.world, self.machine
        if self.present or any(absence.from_s <= world.now_s < absence.until_s for absence in machine.absences):
            return
        self._let_go()
        self.present, self._life = True, self._life + 1
        self._is_started = self._is_paid_for = False
        world.tell(
            Joined(at_s=world.now_s, peer=self.peer, name=machine.name, price=self.price, rate=machine.claimed_rate)
        )
        self.worker.speed.prior = machine.claimed_rate
        if world.steering is None:
            self.switch(active=True, why=str)
        else:
            self.worker.standby = NEWCOMER
        self._soon(self.luck.up_s(), self._taken_away)
        self._soon(self.machine.start_s, self._fetch_newest)

    def _fetch_newest(self) -> None:
        self._is_started = True
        if (newest := self.world.source.newest) is not None:
            self.send(newest, least_s=self.world.source.own_copy_s())

    def _taken_away(self) -> None:
        self.leave()
        self.world.after(self.luck.away_s(), self.join)

    def leave(self) -> None:
        """Leave without notice."""
        if not self.present:
            return
        self.account()
        self.mark_idle()
        world, peer = self.world, self.peer
        self.present, self.is_active, self._life = False, False, self._life + 1
        self.installed = self.arrived = None
        self._busy = self._asking = False
        self._waiting, self._making = [], None
        world.workload.withdraw(peer)
        life = self._life
        world.after(TIMEOUT_S, lambda: self._missed() if self._life == life else None)
        if world.learning.barrier:
            world.serve()

    def _missed(self) -> None:
        """Let the learner notice the timeout."""
        world = self.world
        world.workload.forget(self.peer)
        world.tell(Left(at_s=world.now_s, peer=self.peer, reason="silent"))
        self._let_go()

    def _let_go(self) -> None:
        """Release the leases of this node for others."""
        self.world.lose(self.peer, self.world.workload.release(self.peer, self.world.now_ms), "lost")

    def _soon(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run the action after `delay_s`, unless the machine was taken away meanwhile."""
        life = self._life
        self.world.after(delay_s, lambda: action() if self._life == life else None)

    # Versions

    def send(self, version: PolicyVersion, *, least_s: float = 0.0) -> None:
        """Send a version here, which takes at least `least_s` on average."""
        if self.present and self._is_started:
            mean_s = max(self.machine.broadcast_s, least_s) * self.delay
            self._soon(self.luck.broadcast_s(mean_s), lambda: self._arrive(version))

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
        world.tell(Installed(at_s=world.now_s, peer=self.peer, version=version.version))
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
            self._soon(self.machine.latency_s, self._asked)

    def _asked(self) -> None:
        self.world.workload.ask(self.peer, self.machine.batch_rollouts)
        self.world.serve(self.peer)

    def granted(self, leases: list[GrantedLease]) -> None:
        """Send leases here."""
        self._soon(self.machine.latency_s, lambda: self._received(leases))

    def _received(self, leases: list[GrantedLease]) -> None:
        self._asking = False
        self._waiting = leases
        self._next()

    def _generate(self) -> None:
        """Begin the waiting batch with the installed version, if that is new enough for it."""
        world, leases, version = self.world, self._waiting, self.installed
        if not leases or version is None or version < max(granted.lease.minimum for granted in leases):
            return
        self._waiting, self._busy = [], True
        began_s = world.now_s
        for granted in leases:
            world.workload.started(self.peer, granted.id, version, world.now_ms)
        if version < world.workload.capacity.minimum:  # else there is nothing to recall, and the search costs time
            for granted in leases:
                world.recall(granted.id)
        lengths = [length for granted in leases for length in world.relative_lengths(granted)]
        seconds = self.luck.generation_s(sum(len(granted.lease.seeds) for granted in leases), self.speed, lengths)
        self._making = making = Making(leases=leases, version=version, began_s=began_s)
        self._soon(seconds, lambda: self._generated(making))
        self._ask()

    def _generated(self, making: Making) -> None:
        world = self.world
        if making is not self._making:
            return
        self._stop()
        for granted in making.leases:
            self._soon(self.machine.latency_s, partial(world.deliver, self, granted, making.version, making.began_s))
        self._next()

    def _stop(self) -> None:
        """Free the engine."""
        assert self._making is not None
        self.world.mark(self.machine.name, self._making.began_s, self._making.version.version)
        self._making, self._busy = None, False

    def recalled(self, leases: Collection[LeaseId], minimum: PolicyVersion) -> None:
        """Send the recall of these leases here: they can be used with that version or a newer one only."""
        self._soon(self.machine.latency_s, lambda: self._drop(leases, minimum))

    def _drop(self, leases: Collection[LeaseId], minimum: PolicyVersion) -> None:
        """Return to the learner the leases that were begun with an older version, or would be; stop if nothing is
        left."""
        making, installed = self._making, self.installed or PolicyVersion(0, 0)
        spared = [one for one in self._waiting if one.id in leases and max(installed, one.lease.minimum) < minimum]
        self._waiting = [one for one in self._waiting if one not in spared]
        dropped = []
        if making is not None and making.version < minimum:
            dropped = [one for one in making.leases if one.id in leases]
            making.leases = [one for one in making.leases if one.id not in leases]
            if not making.leases:
                self._stop()
        for status, gone in (("recalled", dropped), ("spared", spared)):
            if gone:
                self._soon(self.machine.latency_s, partial(self.world.return_leases, self.peer, gone, status))
        self._next()
