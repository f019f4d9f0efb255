"""Ask every home router for the ports that this node listens on, keep what is granted, and give it back at the end.

    async with trio.open_nursery() as nursery:
        mapper = PortMapper(listening=..., on_change=..., on_event=...)
        nursery.start_soon(mapper.run)

The loop reads which gateways there are, starts and ends a session for each, and waits for WATCH_S or for `look_again`.
A session has one socket, one `Keeper` for each port, and a listener for the gateway's announcements.

Invariants:

- `on_change` gets all mapped ports whenever they change, and an empty list at the end.
- Neither a gateway nor a network that fails ends `run`.
- There are at most MAX_SESSIONS sessions with MAX_PORTS ports each.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import trio

from swarm.libp2p.port_mapping.announcements import hear_announcements
from swarm.libp2p.port_mapping.gateway_client import GatewayUnreachable, find_own_address, open_client
from swarm.libp2p.port_mapping.gateways import Gateway, find_gateways, own_ipv6_addresses
from swarm.libp2p.port_mapping.keeper import Keeper, MappedPort, Stir
from swarm.libp2p.port_mapping.lease import RECOVERY_S, Failed, Lost, Mapped
from swarm.libp2p.port_mapping.outcomes import IPAddress, MappedBy
from swarm.libp2p.sockets.addresses import Address

WATCH_S = 5.0 if sys.platform.startswith("linux") else 30.0
"""Seconds between two reads of the routing tables: two small files on Linux, a process elsewhere."""

MAX_SESSIONS = 8
"""Pairs of a gateway and an address of ours."""

MAX_PORTS = 4
"""Ports of a session. A node listens on one."""

NO_GATEWAY = "there is no router to ask: this machine has only public addresses, or no route out of its network"


@dataclass(frozen=True, kw_only=True)
class PortMapped:
    """The event `port_mapped`: others can dial `address`, or can again after a change."""

    protocol: MappedBy
    address: Address
    until: float
    """When the mapping ends unless it is renewed, in seconds since 1970."""
    gateway: str
    is_behind_another_nat: bool


@dataclass(frozen=True, kw_only=True)
class PortMappingFailed:
    """The event `port_mapping_failed`. The port is asked for again; the event is repeated only for another reason."""

    reason: str
    gateway: str = ""


@dataclass(frozen=True, kw_only=True)
class Route:
    """A gateway, and our address in its network; for an IPv6 gateway, the address to open."""

    gateway: Gateway
    own: IPAddress


class PortMapper:
    """Keep this node's ports mapped at all home routers."""

    def __init__(
        self,
        *,
        listening: Sequence[Address],
        on_change: Callable[[Sequence[MappedPort]], None],
        on_event: Callable[[PortMapped | PortMappingFailed], None],
        rng: random.Random | None = None,
    ) -> None:
        self._listening = tuple(listening)
        self._on_change = on_change
        self._on_event = on_event
        self._rng = rng or random.Random()
        self._stir = Stir()
        self._keepers: list[Keeper] = []
        self._reasons: dict[str, str] = {}
        """The reason that was last reported, by gateway."""

    async def run(self) -> None:
        """Keep the ports mapped until cancelled; then give them back, within `keeper.RELEASE_S`."""
        sessions: dict[Route, trio.CancelScope] = {}
        async with trio.open_nursery() as nursery:
            while True:
                routes = await self._find_routes()
                for route in sessions.keys() - set(routes):
                    sessions[route].cancel()
                for route in routes:
                    if route not in sessions and len(sessions) < MAX_SESSIONS:
                        sessions[route] = trio.CancelScope()
                        nursery.start_soon(self._serve, route, sessions)
                if not routes:
                    self._fail("", NO_GATEWAY)
                seen = self._stir.count
                with trio.move_on_after(WATCH_S):
                    await self._stir.wait_beyond(seen)

    def look_again(self) -> None:
        """Ask all gateways now whether they still have the mappings: the network has changed, or we slept."""
        self._stir.stir()

    def mapped(self) -> list[MappedPort]:
        """Return the ports that are mapped now."""
        return [keeper.current for keeper in self._keepers if keeper.current is not None]

    async def _find_routes(self) -> list[Route]:
        """Return the gateways behind which this node listens."""
        found: list[Route] = []
        for gateway in await find_gateways():
            if gateway.host.version == 4:
                own = await find_own_address(gateway)
                # A public address has no home router in front of it, and its provider wants no searches for one.
                found += [Route(gateway=gateway, own=own)] if own is not None and not own.is_global else []
            else:
                found += [Route(gateway=gateway, own=own) for own in own_ipv6_addresses(gateway.interface)]
        return [route for route in found if self._ports_at(route.own)][:MAX_SESSIONS]

    def _ports_at(self, own: IPAddress) -> list[int]:
        kind, host = f"ip{own.version}", str(own)
        there = [one.port for one in self._listening if one.kind == kind and (one.is_wildcard or one.host == host)]
        return list(dict.fromkeys(port for port in there if port))[:MAX_PORTS]

    async def _serve(self, route: Route, sessions: dict[Route, trio.CancelScope]) -> None:
        """Keep our ports mapped at one gateway until it is gone."""
        try:
            with sessions[route]:
                await self._keep_all(route)
        except GatewayUnreachable as error:
            self._fail(str(route.gateway), f"the router cannot be asked: {error}")
        finally:
            del sessions[route]

    async def _keep_all(self, route: Route) -> None:
        client = await open_client(route.gateway, route.own)
        keepers = [
            Keeper(client=client, internal_port=port, stir=self._stir, rng=self._rng, tell=self._hear)
            for port in self._ports_at(route.own)
        ]
        self._keepers += keepers
        try:
            async with trio.open_nursery() as nursery:
                for keeper in keepers:
                    nursery.start_soon(keeper.run)
                if route.own.version == 4:
                    nursery.start_soon(self._heed_announcements, route)
        finally:
            self._keepers = [one for one in self._keepers if one not in keepers]
            client.close()

    async def _heed_announcements(self, route: Route) -> None:
        """Check again a random time after the gateway restarted: all its clients at once would overwhelm it."""
        async with trio.open_nursery() as nursery:
            announced = trio.Event()

            def hear() -> None:
                nonlocal announced
                announced.set()

            nursery.start_soon(hear_announcements, route.own, route.gateway.host, hear)
            while True:
                await announced.wait()
                await trio.sleep(self._rng.uniform(0.0, RECOVERY_S))
                announced = trio.Event()
                self._stir.stir()

    def _hear(self, keeper: Keeper, effect: Mapped | Lost | Failed) -> None:
        gateway = str(keeper.client.gateway)
        match effect:
            case Mapped(is_news=False):
                return
            case Mapped():
                assert keeper.current is not None
                self._reasons.pop(gateway, None)
                self._on_change(self.mapped())
                self._on_event(_event(keeper.current))
            case Lost(why=why, is_wanted=is_wanted):
                self._on_change(self.mapped())
                if not is_wanted:
                    self._fail(gateway, f"the mapping was lost: {why}")
            case Failed(why=why):
                self._fail(gateway, why)

    def _fail(self, gateway: str, reason: str) -> None:
        if self._reasons.get(gateway) != reason:
            self._reasons[gateway] = reason
            self._on_event(PortMappingFailed(reason=reason, gateway=gateway))


def _event(mapped: MappedPort) -> PortMapped:
    return PortMapped(
        protocol=mapped.protocol,
        address=mapped.address,
        until=time.time() + mapped.until_s - trio.current_time(),
        gateway=mapped.gateway,
        is_behind_another_nat=mapped.is_behind_another_nat,
    )
