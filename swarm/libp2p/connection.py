"""One secure, multiplexed connection to a peer: what it may cost, and whether bulk may travel over it.

Most lie on a TCP connection of their own. One through a relay lies on a stream of another connection, and is limited:
it carries introductions (`swarm.libp2p.reachability`) and nothing else, unless the relay allows more.

What always holds: all bytes that it holds are in the host's budget; whoever does too much that is small is read slower.
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
    """What a connection needs of its host."""

    door: Door
    budget: Budget
    readiness: Readiness | None

    def end_over(self, over: Iterable[Over]) -> None: ...

    def serve_stream(self, connection: Connection, stream: YamuxStream) -> None: ...


@dataclass(frozen=True, kw_only=True)
class Route:
    """Where a connection leads: the address as we see it, its origin, who dialled, and by which relay, if any."""

    address: str
    origin: str
    dialled: bool
    way: Way = Way.DIALLED
    relay: PeerId | None = None
    is_limited: bool = False
    """Over a circuit that carries introductions alone."""
    local_host: str = ""
    """Our own address on it; empty over a circuit."""
    local_port: int = 0
    from_listening: bool = False
    """It left from the port on which we listen, so what the peer sees of us is where others may knock."""


class Connection:
    """See the module's paragraph. `is_initiator` of the protocols on it, which is not who dialled where both did."""

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
        """The program that the peer says it is; "" before it says so."""
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
        """Count bytes that are in memory for this connection; whoever holds too much is cut off."""
        if over := self._host.budget.change(self.number, delta):
            self._host.end_over(over)

    def charge(self, cost: float) -> float:
        """Count what the peer did; return how long to wait before reading on."""
        wait_s = self._pace.charge(cost, self._host.door.strangers_units, trio.current_time())
        if wait_s > 0:
            self._host.door.refusals.note(STREAM_RATE, self.peer)
        return wait_s

    def change(self, *, is_member: bool) -> None:
        """The peer is a member from now on, or a stranger."""
        self._pace.change(is_member=is_member)
        self.raw.receive_bytes = RECEIVE_BYTES if is_member else STRANGER_RECEIVE_BYTES

    async def aclose(self) -> None:
        """Say good-bye, and wait until the host has forgotten us; about FLUSH_S at most."""
        await self.muxer.aclose()
        await self.gone.wait()


def _driver_on(channel: SecureChannel, readiness: Readiness | None) -> Callable[[Muxer], Driver] | None:
    """How bytes travel over `channel`: when its socket is ready, if there is one of its own and somebody who tells."""
    if readiness is None or (at_once := channel.at_once) is None or (socket := at_once.socket) is None:
        return None
    return lambda muxer: AtOnce(muxer, at_once, socket, readiness)
