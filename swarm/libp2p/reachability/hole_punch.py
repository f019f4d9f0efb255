"""Turn a circuit into a direct connection by hole punching: both ends knock at each other's router at once (DCUtR).

    B, which was reached                       A, which reached it
    CONNECT, where B is seen      -->
                                  <--          CONNECT, where A is seen
    SYNC                          -->          knocks
    (half a round trip later) knocks

A knock is an attempt to connect. It opens the way through the router that it leaves by, so if both knocks cross, both
arrive. That is TCP's simultaneous open, which has no listener. So the ends agree beforehand: A is the client of all
that follows, and B the server. go-libp2p has these roles the other way round (its issue 3171). So with go-libp2p a
connection results from a knock that reaches a listener, and none from two knocks that cross.

Specification: https://github.com/libp2p/specs/blob/master/relay/DCUtR.md. Why one round trip matters, and when holes
can be punched: arXiv 2510.27500.

Invariants:

- There are at most TRIES tries, and each takes PUNCH_S.
- Knocks leave from the port on which we listen. They go to at most MAX_KNOCKED addresses, which `may_dial` allows.
- Only the peer of the circuit is accepted as the one that answers.
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
"""As in the specification. 97.6 % of the holes that could be punched opened at the first try (arXiv 2510.27500)."""

PUNCH_S = 5.0
"""Seconds for one try. TCP knocks again after one second and after three; then a handshake takes four round trips."""

KNOCK_AGAIN_S, KNOCK_SELDOM_S = 0.05, 0.4
"""Seconds before the next knock, if a router rejected a knock rather than drop it: the other end may have opened the
way since. The pause doubles from the first value up to the second, so that a peer that makes us knock at somebody else
causes no flood. Each is scaled at random by 0.5 to 1.5: two ends that knock in step would miss each other for ever."""

ANSWER_S = 10.0

MAX_KNOCKED = 8
"""Addresses of one peer: an IPv4 and an IPv6 one, each as mapped and as seen, and as many to spare."""


@dataclass(frozen=True, kw_only=True)
class Punched:
    """The result: after `tries` tries there is a direct connection, or `why` says why not."""

    tries: int
    why: str = ""


@dataclass(kw_only=True)
class HolePuncher:
    """Punch holes with the peers at the other end of circuits.

    Args:
        seen_at: addresses where others may knock to reach us, if there are any.
        may_dial: whether an address that a stranger named may be dialled.
    """

    host: Hosting
    seen_at: Callable[[], Sequence[Address]]
    may_dial: Callable[[Address], bool] = is_public
    rng: Random = field(default_factory=Random)
    _clients: dict[tuple[str, int], PeerId] = field(default_factory=dict)
    """Addresses at which we knock as clients, with their peers, so that we are also clients if they get in first."""

    def wanted_at(self, host: str, port: int) -> PeerId | None:
        """Return the peer whose client we are, if it connects to us from this address."""
        return self._clients.get((host, port))

    def perhaps_wanted_at(self, host: str) -> PeerId | None:
        """Return the one peer at this host that we knock at as clients; its router may show us another port."""
        peers = {peer for (known, _), peer in self._clients.items() if known == host}
        return peers.pop() if len(peers) == 1 else None

    async def upgrade(self, circuit: Connection) -> Punched:
        """Act as B: get a direct connection to the peer at the circuit's other end."""
        stream: Libp2pStream | None = None
        why = ""
        try:
            for number in range(1, TRIES + 1):
                addresses = [] if stream is None else await self._agree(stream)
                if not addresses:
                    # Some implementations use one stream for each try; the specification has one for all.
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
        """Act as A, as often as B asks. Handles DCUTR, on circuits that we asked for."""
        assert isinstance(stream, Libp2pStream)
        if stream.connection.route.relay is None or not stream.connection.dialled:
            raise PeerError(Fault.MALFORMED, "hole punching must be begun by the peer that was reached through a relay")
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
        """Open a stream with CONNECT on it; return None if the peer does not punch holes."""
        try:
            return await self.host.open_stream_on(circuit, DCUTR, self._connect())
        except TransportError:
            return None

    async def _agree(self, stream: Libp2pStream, began_s: float | None = None) -> list[Address]:
        """Exchange addresses, and return them half a round trip after SYNC was sent; none if the peer does not go on.

        CONNECT is still to be sent, unless it was sent when the stream was opened, at `began_s`.
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
        """Knock at one address until somebody answers; return why that failed."""
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
        """Return where the peer is seen, in address families in which we are seen too: others offer no way back."""
        kinds = {one.kind for one in self.seen_at()}
        told_of = from_bytes(told.ObsAddrs, MAX_KNOCKED)
        return [address for address in told_of if address.kind in kinds and self.may_dial(address)]

    @contextmanager
    def _client_of(self, peer: PeerId, addresses: Sequence[Address]) -> Iterator[None]:
        """For the duration of the block, act as the client of a peer that connects from one of these addresses."""
        places = [(address.host, address.port) for address in addresses]
        self._clients.update(dict.fromkeys(places, peer))
        try:
            yield
        finally:
            for place in places:
                self._clients.pop(place, None)
