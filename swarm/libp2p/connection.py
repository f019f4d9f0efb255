"""Represent one secure, multiplexed connection to a peer: what it may cost, and whether it may carry bulk.

Most connections have a TCP connection of their own. A circuit through a relay lies on a stream of another connection,
and is limited: it carries introductions (`swarm.libp2p.reachability`) and nothing else, unless the relay allows more.

Invariants:

- All bytes that a connection holds are counted in the host's budget.
- A peer that sends many small frames is read more slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import trio

from protocol.core.ids import PeerId
from protocol.reach import Way
from swarm.libp2p.connection_gate import STREAM_RATE, Door, Pace
from swarm.libp2p.memory_budget import STRANGER_STREAMS, Budget, Over
from swarm.libp2p.security import RawConnection, SecureChannel
from swarm.libp2p.sockets.readiness import Readiness
from swarm.libp2p.sockets.tcp import RECEIVE_BYTES, STRANGER_RECEIVE_BYTES
from swarm.libp2p.yamux.connection import MAX_INBOUND_STREAMS, YamuxConnection
from swarm.libp2p.yamux.driving import AtOnce, Driver, Muxer
from swarm.libp2p.yamux.stream import YamuxStream


class Hosting(Protocol):
    """The parts of the host that a connection uses."""

    door: Door
    budget: Budget
    readiness: Readiness | None

    def end_over(self, over: Iterable[Over]) -> None: ...

    def serve_stream(self, connection: Connection, stream: YamuxStream) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Route:
    """The path of a connection: the address as we see it, its origin, which end dialled, and its relay, if any."""

    address: str
    origin: str
    dialled: bool
    way: Way = Way.DIALLED
    relay: PeerId | None = None
    is_limited: bool = False
    """Whether it is a circuit that carries introductions only."""
    local_host: str = ""
    """Our own address on this connection; empty for a circuit."""
    local_port: int = 0
    from_listening: bool = False
    """Whether it left from the port on which we listen. Then the address at which the peer sees us is one where others
    can knock."""


class Connection:
    """Run the streams of one connection and count what the peer costs.

    `is_initiator` is our part in the protocols above TCP. It may differ from who dialled, where both ends dialled.
    """

    def __init__(
        self,
        channel: SecureChannel,
        *,
        raw: RawConnection,
        route: Route,
        number: int,
        is_member: bool,
        is_initiator: bool,
        host: Hosting,
    ) -> None:
        self.peer = channel.remote
        self.route = route
        self.raw = raw
        self.number = number
        self._pace = Pace(is_member=is_member)
        self.change(is_member=is_member)
        self.muxer = YamuxConnection(
            channel,
            initiator=is_initiator,
            accept=partial(host.serve_stream, self),
            account=self,
            drive=_driver_on(channel, host.readiness),
        )
        self.gone = trio.Event()
        self.agent = ""
        """The program that the peer says it runs; "" before it says so."""
        self._host = host

    @property
    def dialled(self) -> bool:
        return self.route.dialled

    @property
    def is_member(self) -> bool:
        return self._pace.is_member

    @property
    def max_streams(self) -> int:
        return MAX_INBOUND_STREAMS if self._pace.is_member else STRANGER_STREAMS

    def hold(self, delta: int) -> None:
        """Count bytes that are in memory for this connection; the host ends a connection that holds too much."""
        if over := self._host.budget.change(self.number, delta):
            self._host.end_over(over)

    def charge(self, cost: float) -> float:
        """Count what the peer did; return the seconds to wait before reading on."""
        wait_s = self._pace.charge(cost, self._host.door.strangers_units, trio.current_time())
        if wait_s > 0:
            self._host.door.refusals.note(STREAM_RATE, self.peer)
        return wait_s

    def change(self, *, is_member: bool) -> None:
        """Make the peer a member, or a stranger, from now on."""
        self._pace.change(is_member=is_member)
        self.raw.receive_bytes = RECEIVE_BYTES if is_member else STRANGER_RECEIVE_BYTES

    async def aclose(self) -> None:
        """Say good-bye, and wait until the host has forgotten this connection; at most about FLUSH_S."""
        await self.muxer.aclose()
        await self.gone.wait()


def _driver_on(channel: SecureChannel, readiness: Readiness | None) -> Callable[[Muxer], Driver] | None:
    """Return what moves bytes by socket readiness, if `channel` has a socket and somebody watches sockets; else None.

    With None, tasks move the bytes.
    """
    if readiness is None or (at_once := channel.at_once) is None or (socket := at_once.socket) is None:
        return None
    return lambda muxer: AtOnce(muxer, at_once, socket, readiness, channel)
