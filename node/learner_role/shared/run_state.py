"""Hold the state that the learner's loops share: chain, rollout buffer, open leases, and the peers that are here.

Invariants:

- Only the trio thread touches it, so it is consistent between two awaits.
- Code that judges deliveries, or replaces chain and buffer, holds `judging` meanwhile. So no record is judged by an old
  chain, and none is added to a buffer that was recovered from a ledger which already held it.
- `notify` wakes the tasks that wait until leases become possible or a batch is complete.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

import trio

from learner.ledger.reach import Reaches
from learner.ledger.troubles import Troubles, Unable
from learner.scheduling.capacity import LeaseCapacity
from learner.scheduling.lease_scheduler import LeaseScheduler
from protocol.accounting.claims import EnergySource
from protocol.core.ids import PeerId
from protocol.reach import Reach
from protocol.versions.manifest import SignedManifest
from swarm.work.membership import Membership


@dataclass(kw_only=True)
class PeerSession:
    """One stay of a peer: its row in the ledger, its name, and the protocol features that its node supports.

    It also counts, since the presence began, the bytes that the node moved, the seconds that its engine generated, and
    its energy (joules by source). `reach` is how others reach the node, if it says so. `is_active`: it is active, so it
    is leased work and paid. Otherwise it is on standby. `standby_s` counts its seconds on standby until `switched_s`.
    """

    row: int
    name: str
    addresses: tuple[str, ...]
    takes_recalls: bool = False
    takes_proofs: bool = False
    takes_revisions: bool = False
    takes_windows: bool = False
    reach: Reach | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    engine_s: float = 0.0
    energy: dict[EnergySource, float] = field(default_factory=dict)
    is_active: bool = True
    standby_s: float = 0.0
    switched_s: float = 0.0

    def switch(self, *, is_active: bool, now_s: float) -> None:
        """Make the peer active or standby from now on. If nothing changes, only the seconds are brought up to date."""
        if not self.is_active:
            self.standby_s += now_s - self.switched_s
        self.is_active, self.switched_s = is_active, now_s


@dataclass(kw_only=True)
class LiveSettings:
    """Settings that somebody changed while the run goes on; None: as swarm.toml has it.

    Args:
        learning_rate: the peak of the schedule.
        every_versions: versions from one evaluation to the next.
        publishes: whether due versions are published.
    """

    learning_rate: float | None = None
    every_versions: int | None = None
    publishes: bool = True


@dataclass(kw_only=True)
class RunState:
    """The state of one run.

    Args:
        scheduler: grants leases; it has chain, buffer and open leases.
        membership: which peers are members.
        kappa: the publication period in force, in training steps.
        published: the newest published version.
        present: the presences of the peers that are here, without teacher nodes.
        finished: whether the run is over.
        vocab_size: the model's vocabulary; known once `opened` is set.
        asked: completions that wait for their reward.
        issued: leases in the ledger.
        judged: records in the ledger when verdicts last reached the curriculum.
        forgotten: the highest incarnation with versions that nodes hold but the ledger does not know, else 0
            (`node.learner_role.peers.forgotten_versions`).
        waits: a sentence about the child process that the learner waits for, mostly the trainer; "" if none.
        announcement: the newest announcement; empty before the first.
        evaluating: evaluations that have begun and are not over, by the training step of their version.
        troubles: what nodes report that they cannot do.
        reaches: how nodes report that others reach them.
        opened: set once the chain and the manifests are known.
        opened_ms: the time at which `opened` was set.
        live: settings that were changed since the start.
        judging: the lock for judging deliveries, and for replacing chain and buffer.
    """

    scheduler: LeaseScheduler
    membership: Membership
    kappa: int = 1
    published: SignedManifest | None = None
    present: dict[PeerId, PeerSession] = field(default_factory=dict)
    teachers: dict[PeerId, PeerSession] = field(default_factory=dict)
    """Stays of teacher nodes, which generate nothing. They are in no other field."""
    finished: bool = False
    vocab_size: int = 0
    asked: int = 0
    issued: int = 0
    judged: int = 0
    forgotten: int = 0
    waits: str = ""
    announcement: bytes = b""
    evaluating: Counter[int] = field(default_factory=Counter)
    troubles: Troubles = field(default_factory=Troubles)
    reaches: Reaches = field(default_factory=Reaches)
    opened: trio.Event = field(default_factory=trio.Event)
    opened_ms: float = math.inf
    live: LiveSettings = field(default_factory=LiveSettings)
    judging: trio.Lock = field(default_factory=trio.Lock)
    _changed: trio.Event = field(default_factory=trio.Event)
    _leasable: trio.Event = field(default_factory=trio.Event)

    @property
    def capacity(self) -> LeaseCapacity:
        """Return chain, buffer and open leases, which decide how much more may be leased."""
        return self.scheduler.capacity

    def session_of(self, peer: PeerId) -> PeerSession | None:
        """Return the presence of a peer that is here, in any role."""
        return self.present.get(peer) or self.teachers.get(peer)

    def unable(self) -> Unable:
        """Return which nodes cannot work with the newest version, and why.

        The evidence is what the nodes report, and their leases.
        """
        newest = self.published.version if self.published else None
        serves = {one: self.scheduler.workers[one].installed for one in self.present if one in self.scheduler.workers}
        return self.troubles.unable(
            self.present,
            newest,
            owing=[one for one in self.present if self.scheduler.debts.is_owing(one)],
            serving=[
                one
                for one, version in serves.items()
                if version is not None and version.version >= self.capacity.oldest
            ],
        )

    def open(self, now_ms: int) -> None:
        """Note that the chain is known, so that deliveries can be judged.

        The first time, the deadlines of earlier leases start again, since the learner's absence was not the peers'
        fault.
        """
        if not self.opened.is_set():
            self.opened_ms = now_ms
            self.capacity.leasing.renew(now_ms)
            self.opened.set()

    def notify(self, *, leasable: bool = True) -> None:
        """Wake the tasks that wait for a change. `leasable`: wake also the requests that wait for leases."""
        self._changed.set()
        self._changed = trio.Event()
        if leasable:
            self._leasable.set()
            self._leasable = trio.Event()

    async def wait_changed(self) -> None:
        """Return after the next `notify`."""
        await self._changed.wait()

    async def wait_leasable(self) -> None:
        """Return after the next `notify` that is `leasable`."""
        await self._leasable.wait()
