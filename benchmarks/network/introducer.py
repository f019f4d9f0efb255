"""Do the learner's part of introductions, without the rest of a learner: welcome peers and introduce them.

It speaks with peers over the work streams that nodes have (`swarm/work`), and decides by a learner's rules
(`node/learner_role/peers/introductions.py`, `swarm/work/neighbour_graph.py`). There is no work: it never grants a
lease.

Invariants:

- A peer gets a new introduction whenever its neighbours or their addresses have changed.
- A peer that does not say how it can be reached is introduced as all peers were before that field existed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from benchmarks.network.founding import now_ms
from node.learner_role.peers.introductions import addresses_for, meets_of
from protocol.core.ids import LeaseId, PeerId
from protocol.core.limits import PROTOCOL_VERSION
from protocol.reach import Reach, reach_from
from protocol.versions.exchange import PeerAddresses
from protocol.work import (
    Grant,
    Heartbeat,
    Hello,
    Introduction,
    LeaseRequest,
    LeaseReturn,
    ProofRequest,
    Relayed,
    Started,
    Welcome,
)
from swarm.transport.interface import Transport
from swarm.work.neighbour_graph import neighbourhoods
from swarm.work.server import Incoming, WorkServer

HEARTBEAT_MS = 1000
"""The product's value is 5 s. Here it only sets how soon the source learns how a peer can be reached, before anything
is measured."""


@dataclass(kw_only=True)
class _Guest:
    addresses: tuple[str, ...]
    reach: Reach | None


@dataclass(kw_only=True)
class Introducer:
    """Welcomes peers and introduces them to each other; a `swarm.work.server.WorkHandler`."""

    transport: Transport
    _guests: dict[PeerId, _Guest] = field(default_factory=dict)
    _told: dict[PeerId, list[PeerAddresses]] = field(default_factory=dict)
    _server: WorkServer = field(init=False)

    def __post_init__(self) -> None:
        self._inbox, _ = trio.open_memory_channel[Incoming](0)
        self._server = WorkServer(transport=self.transport, desk=self, inbox=self._inbox)

    def start(self) -> None:
        """Start to welcome peers."""
        self._server.start()

    async def welcome(self, peer: PeerId, hello: Hello) -> Welcome:
        await trio.lowlevel.checkpoint()
        self._guests[peer] = _Guest(addresses=tuple(hello.addresses), reach=reach_from(hello.ext))
        self._introduce()
        return Welcome(
            protocol=PROTOCOL_VERSION,
            now_ms=now_ms(),
            heartbeat_ms=HEARTBEAT_MS,
            staleness=0,
            publish_every=1,
            peers=self._told[peer],
        )

    def take_heartbeat(self, peer: PeerId, heartbeat: Heartbeat) -> None:
        if (reach := reach_from(heartbeat.ext)) is not None and peer in self._guests:
            self._guests[peer].reach = reach
            self._introduce()

    def note_departure(self, peer: PeerId, reason: str) -> None:
        self._guests.pop(peer, None)
        self._introduce()

    def _introduce(self) -> None:
        """Send every peer with changed neighbours its new list, as `SessionService` does."""
        guests = self._guests
        relays = {peer: guest.addresses for peer, guest in guests.items()}
        relays[self.transport.peer_id] = tuple(self.transport.addresses())
        beside = neighbourhoods({peer: meets_of(guest.reach) for peer, guest in guests.items()})
        told = {
            peer: [
                addresses_for(
                    guests[peer].reach,
                    other,
                    guests[other].reach,
                    guests[other].addresses,
                    relays,
                    shares_network=False,
                )
                for other in sorted(others)
            ]
            for peer, others in beside.items()
        }
        for peer, peers in told.items():
            if self._told.get(peer) != peers:
                self._server.tell(peer, Introduction(peers=peers))
        self._told = told

    # There is no work.

    async def grant(self, peer: PeerId, request: LeaseRequest) -> Grant:
        await trio.sleep_forever()
        raise AssertionError("unreachable")

    def take_start(self, peer: PeerId, started: Started) -> None: ...

    def note_delivery(self, peer: PeerId, lease: LeaseId) -> None: ...

    def take_return(self, peer: PeerId, leases: LeaseReturn) -> None: ...

    def take_relay_receipt(self, peer: PeerId, relayed: Relayed) -> None: ...

    def take_proof_request(self, peer: PeerId, request: ProofRequest) -> None: ...
