"""Play one peer of a drill: a node's connection to the learner, with a behaviour in place of an engine.

Invariants:

- It speaks the protocol of a node, by the same code as a node.
- It ends when the learner sends it away, when the run is over, or when it has made its groups or rollouts.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

import trio

from node.commands.drill.attacks import Attack
from node.commands.drill.behaviours import Behaviour
from node.engine.interface import EngineError
from node.runtime.events import Clock
from protocol.accounting.claims import Price
from protocol.accounting.relay_receipt import relay_receipt
from protocol.core.envelope import sign
from protocol.core.errors import Fault
from protocol.core.genesis import Authority
from protocol.core.ids import LeaseId, ManifestHash, PeerId, PolicyVersion
from protocol.core.limits import PROTOCOL_VERSION
from protocol.versions.exchange import COMPUTE_DTYPE
from protocol.work import (
    LEASE_RECALLS,
    RECEIPT_REVISIONS,
    Heartbeat,
    Hello,
    LeaseRecall,
    Started,
)
from swarm.transport.error_groups import first_cause
from swarm.transport.interface import Transport
from swarm.work.client import Granted, NotWelcome, RunFinished, SessionEvent, WorkClient

RETURNED = "its owner needs the machine"
"""Reason that every peer gives when it returns a lease, cheats included."""

TAKEN_AWAY = 0.01
"""Fraction of an honest peer's leases during which its owner takes the machine away, whatever their rewards are."""


class Ended(Enum):
    """Why a peer is gone."""

    BANNED = "banned"
    FINISHED = "finished"
    DONE = "done"


@dataclass(kw_only=True)
class DrillPeer:
    """One peer of a drill.

    Args:
        attack: None for an honest peer.
        batch: rollouts that it requests at a time.
        groups, rollouts: how many it makes before it ends; None for no limit.
        accomplice: peer for whose chunks it signs receipts, for each version.
    """

    name: str
    hand: Behaviour
    transport: Transport
    authority: Authority
    learner: list[str]
    token: str
    price: Price
    batch: int
    rng: random.Random
    chunks: Callable[[PolicyVersion], tuple[ManifestHash, int]]
    attack: Attack | None = None
    groups: int | None = None
    rollouts: int | None = None
    accomplice: PeerId | None = None
    delivered_groups: int = 0
    recalled: set[bytes] = field(default_factory=set)
    _installed: PolicyVersion | None = None
    _signed_for: set[PolicyVersion] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.work_client = WorkClient(
            transport=self.transport,
            authority=self.authority,
            learner=self.learner,
            hello=self._hello,
            heartbeat=self._heartbeat,
            now_ms=Clock.now_ms,
            on_event=self._heard,
            report=_nobody,
            rng=self.rng,
        )

    @property
    def peer(self) -> PeerId:
        return self.hand.keypair.peer_id

    async def play(self) -> Ended:
        """Play to the end, and return why it ended."""
        try:
            with first_cause():
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self.work_client.run)
                    await self._work()
                    nursery.cancel_scope.cancel()
        except NotWelcome:
            return Ended.BANNED
        except RunFinished:
            return Ended.FINISHED
        return Ended.DONE

    @property
    def is_done(self) -> bool:
        """Whether it has made all its groups or rollouts."""
        return (self.groups is not None and self.delivered_groups >= self.groups) or (
            self.rollouts is not None and self.hand.rollouts >= self.rollouts
        )

    async def _work(self) -> None:
        foundry = self.hand.common.foundry
        while not self.is_done:
            self._installed = await foundry.wait_published()
            self.work_client.heartbeat_now()
            granted = await self.work_client.request_leases(self.batch)
            version = await foundry.wait_published(max(one.lease.minimum for one in granted))
            if version != self._installed:
                self._installed = version
                self.work_client.heartbeat_now()
            self._sign_for(version)
            async with trio.open_nursery() as nursery:
                for one in granted:
                    nursery.start_soon(self._answer, one, version)

    async def _answer(self, granted: Granted, version: PolicyVersion) -> None:
        lease = granted.lease
        self.work_client.tell_started(Started(lease=lease.id, version=self.hand.announce_version(lease, version)))
        taken = self.attack is None and self.rng.random() < TAKEN_AWAY
        try:
            records = None if taken else await self.hand.answer(lease, version)
        except EngineError:
            records = None
        if records is None or lease.id in self.recalled:
            self.work_client.return_leases([LeaseId(lease.id)], RETURNED)
            self.recalled.discard(lease.id)
            return
        honest = 0 if self.hand.has_cheated else len(records)
        await self.work_client.deliver(LeaseId(lease.id), records)
        self.delivered_groups += 1
        self.hand.honest += honest

    def _sign_for(self, version: PolicyVersion) -> None:
        """Sign that the accomplice sent us all chunks of this version."""
        if self.accomplice is None or version in self._signed_for:
            return
        self._signed_for.add(version)
        manifest, count = self.chunks(version)
        if (receipt := relay_receipt(manifest, dict.fromkeys(range(count), self.accomplice))) is not None:
            self.work_client.tell_relayed(sign(self.hand.keypair, self.hand.common.swarm, receipt))

    def _heard(self, event: SessionEvent) -> None:
        if isinstance(event, LeaseRecall):
            self.recalled.update(event.leases)

    def _hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL_VERSION,
            name=self.name,
            token=self.token,
            price=self.price,
            engine="transformers",
            machine="drill",
            ext={LEASE_RECALLS: b"", RECEIPT_REVISIONS: b"", COMPUTE_DTYPE: b"float32"},
        )

    def _heartbeat(self) -> Heartbeat:
        claimed = 3600.0 if self.attack is Attack.OVERCHARGING else 0.0
        return Heartbeat(installed=self.hand.report_version(self._installed), engine_s=claimed)


def _nobody(peer: PeerId, fault: Fault, detail: str) -> None:
    """Ignore the fault: this peer does not judge the learner."""
