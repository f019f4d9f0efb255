"""Turn a circuit into a direct connection in any way that works: by dialling back, or by hole punching.

    circuit from a peer --+--> we dial it, where it can be dialled ---+--> met; the circuit is closed
                          +--> both knock at the same moment (DCUtR) --+
    two connections to a peer --> those are closed on which nobody answers, then all but one

Invariants:

- A failure here ends nothing but the circuit.
- A circuit that has served its purpose is closed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from random import Random

import trio

from protocol.core.ids import PeerId
from protocol.reach import Way
from swarm.libp2p.connection import Connection
from swarm.libp2p.racing import race
from swarm.libp2p.reachability.circuits import Circuits, NoCircuit, RelayBusy
from swarm.libp2p.reachability.dial_policy import is_public
from swarm.libp2p.reachability.hole_punch import HolePuncher, Punched
from swarm.libp2p.reachability.hosting import Hosting
from swarm.libp2p.reachability.inquiries import check_others_alive, identify
from swarm.libp2p.security import HandshakeFailed
from swarm.libp2p.sockets.addresses import Address, CircuitAddress
from swarm.libp2p.sockets.port_reuse import Leaves
from swarm.transport.event_rate import Buckets, Rate
from swarm.transport.interface import DialFailed

MAX_PUNCHED = 256
"""Peers whose last hole punching result is remembered: more than a node has neighbours."""

PUNCHES = Rate(per_s=1 / 30, burst=4.0)
"""Circuits of one peer over which we knock where it says. An honest one comes again only when a network has changed."""

UPGRADE_S = 40.0
"""Seconds from a circuit to a direct connection, at most: three tries, and the time to agree on them."""

PRUNE_S = 3.0
"""Seconds before all connections to a peer but one are closed: one that was made to dial us back is gone by then."""

BUSY_PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""Seconds before a busy relay is asked again; each pause is extended at random, up to twice as long. After a learner's
restart members want hundreds of circuits at once. A relay carries 128 of them, each for three seconds."""

LINGER_S = 1.0
"""Seconds from a direct connection to the end of the circuit, so that the slower end knows of the connection too."""

log = logging.getLogger(__name__)


class Meetings:
    """Get direct connections. `seen_at` returns where others may knock to reach us. Nothing happens before `start`."""

    def __init__(self, host: Hosting, seen_at: Callable[[], Sequence[Address]]) -> None:
        self.circuits = Circuits(host=host, on_inbound=self._upgrade)
        self.puncher = HolePuncher(host=host, seen_at=seen_at)
        self.punched: dict[PeerId, Punched] = {}
        """The result of the last hole punching with each peer that reached us through a relay."""
        self._host = host
        self._rng = Random()
        self._punches: Buckets[PeerId] = Buckets(rate=PUNCHES)

    def start(self, nursery: trio.Nursery) -> None:
        """Run the background tasks in `nursery` from now on."""
        self._nursery = nursery

    def note_connected(self, connection: Connection) -> None:
        """Note a new connection, which is no limited circuit."""
        if len(self._host.connections_to(connection.peer)) > 1:
            self._nursery.start_soon(self._prune, connection)

    async def through(self, addresses: Sequence[CircuitAddress], named_by_others: bool) -> str:
        """Get a direct connection to a peer behind a relay. Return why there is none, "" if there is one.

        The relay is dialled at one of these addresses if need be, and if it may be, where others named them.
        """
        peer, relay = addresses[0].peer, addresses[0].relay.peer
        assert relay is not None
        try:
            if self._host.open_connection(relay) is None:
                await self._host.dial([str(one.relay) for one in addresses], named_by_others=named_by_others)
            circuit = await self._host.unless_met(peer, partial(self._connect_with_retries, relay, peer))
        except (DialFailed, NoCircuit) as error:
            return f"{addresses[0]}: {error}"
        if circuit is None or not circuit.route.is_limited:
            return ""  # it came by itself, or the reached peer looks for a shorter way
        with trio.move_on_after(UPGRADE_S):
            await self._host.unless_met(peer, circuit.gone.wait)
        self._nursery.start_soon(self._leave, circuit)
        if not self._host.is_met(peer):
            return f"{addresses[0]}: no direct connection through the routers between us succeeded"
        return ""

    async def _connect_with_retries(self, relay: PeerId, peer: PeerId) -> Connection:
        """Return a circuit to `peer`, also from a relay that is busy for a while. Raises NoCircuit."""
        for pause_s in BUSY_PAUSES_S:
            try:
                return await self.circuits.connect(relay, peer)
            except RelayBusy as busy:
                log.debug("asked again in a moment: %s", busy)
            await trio.sleep(self._rng.uniform(pause_s, 2 * pause_s))
        return await self.circuits.connect(relay, peer)

    def _upgrade(self, circuit: Connection) -> None:
        self._nursery.start_soon(self._meet, circuit)

    async def _meet(self, circuit: Connection) -> None:
        """Get a direct connection to a peer that reached us through a relay, even if we seem to have one."""
        await check_others_alive(self._host, circuit.peer, but=circuit)
        if not circuit.route.is_limited or self._punches.of(circuit.peer).admit(trio.current_time()):
            with trio.move_on_after(UPGRADE_S):
                await self._host.unless_met(circuit.peer, partial(self._punch, circuit))
        if circuit.route.is_limited or self._host.is_met(circuit.peer):
            await self._leave(circuit)

    async def _punch(self, circuit: Connection) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._reverse, circuit)
            punched = await self.puncher.upgrade(circuit)
            self.punched[circuit.peer] = punched
            while len(self.punched) > MAX_PUNCHED:
                self.punched.pop(next(iter(self.punched)))
            log.debug("%d tries to punch a hole to %s: %s", punched.tries, circuit.peer, punched.why or "done")

    async def _reverse(self, circuit: Connection) -> None:
        """Dial a peer that reached us through a relay, if it can be dialled over the internet.

        Private addresses are not dialled: a peer on our network got our address from the learner, and one that any
        other peer names would mean a machine of ours. The dial leaves from a port of its own. From our listening port
        it would look like a knock.
        """
        told = await identify(self._host, circuit)
        attempts = [
            partial(self._dial_back, circuit.peer, address)
            for address in (told.addresses if told is not None else ())
            if is_public(address)
        ]
        await race(attempts)

    async def _dial_back(self, peer: PeerId, address: Address) -> str:
        try:
            await self._host.connect(peer, address, leaves=Leaves.ANEW, way=Way.REVERSED)
        except (OSError, HandshakeFailed) as error:
            return f"{address}: {error}"
        return ""

    async def _prune(self, newest: Connection) -> None:
        """Keep one connection of several after two dials have crossed: the smaller peer id decides which.

        Or the peer connected again because it slept or moved, and the older connection is dead without our knowing.
        """
        peer = newest.peer
        await check_others_alive(self._host, peer, but=newest)
        if self._host.peer_id < peer:
            await trio.sleep(PRUNE_S)
            for one in self._host.connections_to(peer)[1:]:
                await one.aclose()

    async def _leave(self, circuit: Connection) -> None:
        await trio.sleep(LINGER_S)
        await circuit.aclose()
