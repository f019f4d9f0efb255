"""What the loops of a learner share: the workload, with chain, buffer and open leases, and who is here.

What always holds: only the trio thread touches it, so between two awaits it is consistent; whoever judges deliveries or
puts another chain and buffer in place holds `judging` meanwhile, so that no record is judged by a chain that is gone,
or put into a buffer that was recovered from a ledger which held it already; `notify` wakes whoever waits for leases to
become possible or a batch to be complete.
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
    """One stay of a peer: its row in the ledger, its name, what its node understands, and what it moved, generated
    and took of the mains (joules by source) since it came; how it is reached, where it says so.

    `is_on`: it is leased to, and paid. Else it stands by, for `standby_s` until `switched_s`.
    """

    row: int
    name: str
    addresses: tuple[str, ...]
    takes_recalls: bool = False
    takes_proofs: bool = False
    takes_revisions: bool = False
    reach: Reach | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    engine_s: float = 0.0
    energy: dict[EnergySource, float] = field(default_factory=dict)
    is_on: bool = True
    standby_s: float = 0.0
    switched_s: float = 0.0

    def switch(self, *, on: bool, now_s: float) -> None:
        """From now on it is on, or stands by; the same as before only brings the seconds up to date."""
        if not self.is_on:
            self.standby_s += now_s - self.switched_s
        self.is_on, self.switched_s = on, now_s


@dataclass(kw_only=True)
class RunState:
    """See the module's paragraph.

    `opened` is set once the chain is known, and so are the manifests, at `opened_ms`; `vocab_size` from then on.
    `published` is the newest version, `kappa` the publication period in force; `issued` how many leases the ledger has,
    and `judged` how many records it had when verdicts last reached the curriculum; `asked` how many completions wait to
    be told what they are worth; `announcement` is the newest one, empty before the first; `evaluating` counts, by the
    training step of a version, its evaluations that have begun and are not over; `forgotten` is the highest incarnation
    of which versions are out that the ledger knows nothing of, 0 where there is none
    (`node.learner_role.peers.forgotten_versions`); `troubles` is what nodes say that they cannot do, `reaches`
    how they say that they are reached. `waits` is a
    sentence while a process of the learner's own is not there yet, the trainer's above all: which, or what it says that
    it waits for.
    """

    scheduler: LeaseScheduler
    membership: Membership
    kappa: int = 1
    published: SignedManifest | None = None
    present: dict[PeerId, PeerSession] = field(default_factory=dict)
    teachers: dict[PeerId, PeerSession] = field(default_factory=dict)
    """Nodes that score with a teacher, and generate nothing: they are in nothing else here."""
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
    judging: trio.Lock = field(default_factory=trio.Lock)
    _changed: trio.Event = field(default_factory=trio.Event)
    _leasable: trio.Event = field(default_factory=trio.Event)

    @property
    def capacity(self) -> LeaseCapacity:
        """Chain, buffer and open leases, and how much may be leased beside them."""
        return self.scheduler.capacity

    def session_of(self, peer: PeerId) -> PeerSession | None:
        """The stay of a peer that is here, in whatever role."""
        return self.present.get(peer) or self.teachers.get(peer)

    def unable(self) -> Unable:
        """Which nodes cannot work with the newest version, and why, as far as they say so or their leases show it."""
        newest = self.published.version if self.published else None
        serves = {one: self.scheduler.workers[one].installed for one in self.present if one in self.scheduler.workers}
        return self.troubles.unable(
            self.present,
            newest,
            owing=[one for one in self.present if self.scheduler.give_backs.is_owing(one)],
            serving=[
                one
                for one, version in serves.items()
                if version is not None and version.version >= self.capacity.oldest
            ],
        )

    def open(self, now_ms: int) -> None:
        """The chain is known, and deliveries are judged from here on. The first time, leases of before begin anew: what
        became of them since their learner went away was not their peers' doing."""
        if not self.opened.is_set():
            self.opened_ms = now_ms
            self.capacity.leasing.renew(now_ms)
            self.opened.set()

    def notify(self, *, leasable: bool = True) -> None:
        """Something changed that others wait for; not `leasable`: nothing that a request for leases waits for."""
        self._changed.set()
        self._changed = trio.Event()
        if leasable:
            self._leasable.set()
            self._leasable = trio.Event()

    async def wait_changed(self) -> None:
        """Return after the next `notify`."""
        await self._changed.wait()

    async def wait_leasable(self) -> None:
        """Return after the next `notify` of something that requests for leases may wait for."""
        await self._leasable.wait()
