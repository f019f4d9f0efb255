"""From a circuit to a direct connection: both ends knock at each other's router at the same time (DCUtR).

    B, which was reached                       A, which reached it
    CONNECT, where B is seen      -->
                                  <--          CONNECT, where A is seen
    SYNC                          -->          knocks
    (half a round trip later) knocks

Each knock opens the way through the router that it leaves by, so where they cross, both arrive: TCP's simultaneous
open, in which there is no listener. So the ends agree beforehand: A is the client of all that follows, B the server.
go-libp2p has it the other way round (its issue 3171), so with it a connection comes of a knock that reaches a listener,
and none of two that cross.

Invariants:
- There are TRIES, and each takes PUNCH_S.
- Knocks leave from the port on which we listen. They go to MAX_KNOCKED addresses at most, which `may_dial` allows.
- Who answers is the peer of the circuit, or nobody.

Specification: https://github.com/libp2p/specs/blob/master/relay/DCUtR.md. That one round trip matters, and when what
can be punched is: arXiv 2510.27500.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from random import Random

import trio
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch

from protocol.core.errors import Fault, PeerError
from protocol.core.ids import PeerId
from protocol.reach import Way
from swarm.libp2p.connection import Connection
from swarm.libp2p.racing import race
from swarm.libp2p.reachability.dial_policy import is_public
from swarm.libp2p.reachability.hosting import Hosting
from swarm.libp2p.reachability.multiaddrs import from_bytes, to_bytes
from swarm.libp2p.reachability.wire import framed, receive
from swarm.libp2p.security import HandshakeFailed
from swarm.libp2p.sockets.addresses import Address
from swarm.libp2p.sockets.port_reuse import Leaves
from swarm.libp2p.stream import Libp2pStream
from swarm.transport.interface import Stream, TransportError

DCUTR = "/libp2p/dcutr"

TRIES = 3
"""As the specification says. Of the holes that could be punched, 97.6 % were at the first try (arXiv 2510.27500)."""

PUNCH_S = 5.0
"""For one try. TCP knocks again after one second and after three; then a handshake takes four round trips."""

KNOCK_AGAIN_S, KNOCK_SELDOM_S = 0.05, 0.4
"""After a router turned a knock away rather than swallow it: the other end's may have opened the way since. Each pause
is twice the one before, up to the second: whoever has us knock at somebody else gets no flood of it. And each is half
as long to half as long again, at random: two that knock in step would miss each other for ever."""

ANSWER_S = 10.0

MAX_KNOCKED = 8
"""Addresses of one peer: an IPv4 and an IPv6 one, each as mapped and as seen, and as many to spare."""


@dataclass(frozen=True, kw_only=True)
class Punched:
    """What came of it: after so many tries a direct connection, or `why` there is none."""

    tries: int
    why: str = ""


@dataclass(kw_only=True)
class HolePuncher:
    """See the module's paragraph.

    Args:
        seen_at: where others may knock to reach us, if anywhere.
        may_dial: whether an address that a stranger named may be dialled.
    """

    host: Hosting
    seen_at: Callable[[], Sequence[Address]]
    may_dial: Callable[[Address], bool] = is_public
    rng: Random = field(default_factory=Random)
    _clients: dict[tuple[str, int], PeerId] = field(default_factory=dict)
    """Addresses of peers at which we knock as clients, so that we are clients as well where they are let in first."""

    def wanted_at(self, host: str, port: int) -> PeerId | None:
        """The peer that we are to be the client of, should it connect to us from there."""
        return self._clients.get((host, port))

    def perhaps_wanted_at(self, host: str) -> PeerId | None:
        """The one peer that we knock at there as clients. Its router may show us another port than it showed others."""
        peers = {peer for (known, _), peer in self._clients.items() if known == host}
        return peers.pop() if len(peers) == 1 else None

    async def upgrade(self, circuit: Connection) -> Punched:
        """Be B: get a direct connection to the peer at the circuit's other end."""
        stream: Libp2pStream | None = None
        why = ""
        try:
            for number in range(1, TRIES + 1):
                addresses = [] if stream is None else await self._agree(stream)
                if not addresses:
                    # Some take a stream for each try, though the specification has one for all.
                    began_s = trio.current_time()
                    stream = await self._begin(circuit)
                    addresses = [] if stream is None else await self._agree(stream, began_s)
                if not addresses:
                    return Punched(tries=number, why=f"{circuit.peer} does not say where it can be seen")
                if not (why := await self._knock(circuit.peer, addresses, is_client=False)):
                    return Punched(tries=number)
        finally:
            if stream is not None:
                with trio.CancelScope(shield=True):
                    await stream.aclose()
        return Punched(tries=TRIES, why=f"{circuit.peer} was not reached in {TRIES} tries: {why}")

    async def serve(self, stream: Stream) -> None:
        """Be A, as often as B asks. Handles DCUTR, on circuits that we asked for."""
        assert isinstance(stream, Libp2pStream)
        if stream.connection.route.relay is None or not stream.connection.dialled:
            raise PeerError(Fault.MALFORMED, "hole punching is for whoever was reached through a relay to begin")
        for _ in range(TRIES):
            with trio.fail_after(ANSWER_S + PUNCH_S):
                asked = await receive(stream, HolePunch)
            if asked.type != HolePunch.CONNECT:
                raise PeerError(Fault.MALFORMED, f"hole punching begins with CONNECT, not {asked.type}")
            addresses = self._dialable(asked)
            await stream.send_all(self._connect())
            with self._client_of(stream.remote, addresses):
                with trio.fail_after(ANSWER_S):
                    go = await receive(stream, HolePunch)
                if go.type != HolePunch.SYNC:
                    raise PeerError(Fault.MALFORMED, f"after CONNECT comes SYNC, not {go.type}")
                if not await self._knock(stream.remote, addresses, is_client=True):
                    return

    async def _begin(self, circuit: Connection) -> Libp2pStream | None:
        """Open a stream with CONNECT on it; None where the peer does not punch holes."""
        try:
            return await self.host.open_stream_on(circuit, DCUTR, self._connect())
        except TransportError:
            return None

    async def _agree(self, stream: Libp2pStream, began_s: float | None = None) -> list[Address]:
        """Exchange addresses, and return half a round trip after SYNC was sent. Nothing, where the peer does not go on.

        CONNECT is still to be sent unless it was when the stream was opened, at `began_s`.
        """
        try:
            with trio.fail_after(ANSWER_S):
                if began_s is None:
                    began_s = trio.current_time()
                    await stream.send_all(self._connect())
                told = await receive(stream, HolePunch)
                round_trip_s = trio.current_time() - began_s
                if told.type != HolePunch.CONNECT:
                    return []
                await stream.send_all(framed(HolePunch(type=HolePunch.SYNC)))
        except (TransportError, PeerError, trio.TooSlowError):
            return []
        await trio.sleep(round_trip_s / 2)
        return self._dialable(told)

    async def _knock(self, peer: PeerId, addresses: Sequence[Address], *, is_client: bool) -> str:
        """Knock at all addresses at once until there is a connection; return why there is none."""
        failures = [f"no answer within {PUNCH_S:.0f} s"]
        with trio.move_on_after(PUNCH_S):
            knocks = [partial(self._knock_at, peer, address, is_client=is_client) for address in addresses]
            failures = await self.host.unless_met(peer, partial(race, knocks, pause_s=0.0)) or []
        return "" if self.host.is_met(peer) else "; ".join(failures)

    async def _knock_at(self, peer: PeerId, address: Address, *, is_client: bool) -> str:
        """Knock at one address until somebody is there; return why that is of no use."""
        pause_s = KNOCK_AGAIN_S
        while True:
            try:
                await self.host.connect(
                    peer, address, is_initiator=is_client, leaves=Leaves.WHERE_WE_LISTEN, way=Way.PUNCHED
                )
            except HandshakeFailed as error:
                return f"{address}: {error}"
            except OSError:
                await trio.sleep(self.rng.uniform(0.5, 1.5) * pause_s)
                pause_s = min(2 * pause_s, KNOCK_SELDOM_S)
            else:
                return ""

    def _connect(self) -> bytes:
        return framed(HolePunch(type=HolePunch.CONNECT, ObsAddrs=[to_bytes(str(one)) for one in self.seen_at()]))

    def _dialable(self, told: HolePunch) -> list[Address]:
        """Where the peer is seen, in families of addresses in which we are seen ourselves: elsewhere is no way back."""
        kinds = {one.kind for one in self.seen_at()}
        told_of = from_bytes(told.ObsAddrs, MAX_KNOCKED)
        return [address for address in told_of if address.kind in kinds and self.may_dial(address)]

    @contextmanager
    def _client_of(self, peer: PeerId, addresses: Sequence[Address]) -> Iterator[None]:
        """Meanwhile, who connects from one of these expects us to be its client."""
        places = [(address.host, address.port) for address in addresses]
        self._clients.update(dict.fromkeys(places, peer))
        try:
            yield
        finally:
            for place in places:
                self._clients.pop(place, None)
