"""Record how long this node worked and what it moved, for its own report: every SESSION_S, and at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import trio

from node.energy.monitor import EnergyWatch
from node.network.swarm_peer import SwarmPeer
from node.network.traffic_growth import has_grown
from node.reports.readers.receipts_report import worked_s
from node.runtime.events import Clock, EventLog
from node.state.receipt_rows import PeerTraffic
from node.state.receipts import Receipts
from protocol.accounting.claims import MICROS, Price
from swarm.transport.interface import Traffic, Transport

SESSION_S = 2.0
"""Seconds between two records of a session. A killed node loses at most this much."""


@dataclass(frozen=True, kw_only=True)
class _Before:
    """What the node did in all sessions before this one."""

    worked_s: float = 0.0
    trained: int = 0


@dataclass(kw_only=True)
class SessionRecords:
    """Records one session of a node, at this `price`."""

    receipts: Receipts
    price: Price
    transport: Transport
    swarm: SwarmPeer | None
    """None for a node that moves no chunks."""
    energy: EnergyWatch
    events: EventLog
    bytes_carried: int = 0
    """Bytes that circuits through this node carried between others since its start."""
    _noted: set[PeerTraffic] = field(default_factory=set)
    _told: Traffic = field(default_factory=Traffic)
    _before: _Before = field(default_factory=_Before)

    async def run(self) -> None:
        """Record the session regularly until cancelled, and a last time then."""
        session = await trio.to_thread.run_sync(self._begin)
        self.events.emit(
            "session_began", worked_s=round(self._before.worked_s, 1), trained=self._before.trained,
            per_hour=self.price.micros_per_hour / MICROS, currency=self.price.currency,
        )  # fmt: skip
        try:
            while True:
                await trio.sleep(SESSION_S)
                await self._note(session)
        finally:
            with trio.CancelScope(shield=True):
                await self._note(session)

    def _begin(self) -> int:
        """Begin a session in the receipts, and sum up those before it."""
        receipts = self.receipts
        self._before = _Before(worked_s=worked_s(receipts.sessions()), trained=receipts.num_trained())
        return receipts.session_began(self.price, Clock.now_ms())

    async def _note(self, session: int) -> None:
        """Record the session, and the traffic by peer that has changed since the last time."""
        bytes_up, bytes_down, carried = 0, 0, 0
        if self.swarm is not None:
            bytes_up, bytes_down = self.swarm.serving.served_bytes, self.swarm.exchange.fetched_bytes
            carried = sum(self.swarm.transport.take_carried().values())
        traffic, moved = self._traffic(), self.transport.total_traffic()
        self.bytes_carried += carried
        if traffic != self._noted or carried or has_grown(self._told, moved):
            self._told = moved
            self.events.emit(
                "traffic", bytes_up=bytes_up, bytes_down=bytes_down, bytes_carried=self.bytes_carried,
                sent_bytes=moved.sent, received_bytes=moved.received,
            )  # fmt: skip
        await trio.to_thread.run_sync(
            partial(
                self.receipts.session_lasts,
                session,
                Clock.now_ms(),
                bytes_up=bytes_up,
                bytes_down=bytes_down,
                moved=moved,
                traffic=traffic - self._noted,
                energy=self.energy.joules,
            )
        )
        self._noted = traffic

    def _traffic(self) -> set[PeerTraffic]:
        """Return the bytes exchanged with each peer since the start."""
        if self.swarm is None:
            return set()
        served, fetched = self.swarm.serving.served, self.swarm.exchange.fetched_from
        return {
            PeerTraffic(
                peer=peer,
                bytes_up=served[peer].size_bytes if peer in served else 0,
                bytes_down=fetched[peer],
            )
            for peer in served.keys() | fetched.keys()
        }
