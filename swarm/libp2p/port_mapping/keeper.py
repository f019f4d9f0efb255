"""Keep one port mapped at one gateway: the driver of `lease.MappingLease`.

PCP, NAT-PMP and UPnP's search begin at the same time. The first of them, in this order, that grants the port keeps it.
The others are asked only if it refuses or is silent.

The loop performs the effects of the lease. It waits for the lease's next time, for the next check of the gateway, or
for `Stir`, which wakes all keepers when the network may have changed.

Invariants:

- When `run` ends, in whatever way, the mapping is given back, or RELEASE_S have passed.
- `current` is the address that others can dial, or None.
"""

from __future__ import annotations

import ipaddress
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import trio

from swarm.libp2p.port_mapping.datagram_ways import NatPmpWay, PcpWay, find_spoken
from swarm.libp2p.port_mapping.gateway_client import GatewayClient
from swarm.libp2p.port_mapping.lease import (
    LIFETIME_S,
    Ask,
    Effect,
    End,
    Event,
    Failed,
    LookAgain,
    Lost,
    Mapped,
    MappingLease,
    ReleaseMapping,
    Tick,
)
from swarm.libp2p.port_mapping.outcomes import Answer, Granted, MappedBy, NoAnswer, Refused
from swarm.libp2p.port_mapping.ssdp import find_locations
from swarm.libp2p.port_mapping.upnp import UpnpWay
from swarm.libp2p.reachability.dial_policy import SHARED, is_private
from swarm.libp2p.sockets.addresses import Address

RELEASE_S = 2.0
"""Seconds that a stopping node waits for its gateways at most. A mapping that is left there ends with its lifetime."""

LOOK_S = {MappedBy.PCP: 30.0, MappedBy.NAT_PMP: 30.0, MappedBy.UPNP: 300.0}
"""Seconds between two checks whether a gateway still has the mapping: 60 bytes by datagram, a process by UPnP."""

Way = PcpWay | NatPmpWay | UpnpWay


@dataclass(frozen=True, kw_only=True)
class MappedPort:
    """One port that a gateway forwards to us."""

    address: Address
    """The address at which others dial us."""
    protocol: MappedBy
    gateway: str
    internal_port: int
    until_s: float
    """When the mapping ends unless it is renewed, on trio's clock."""

    @property
    def is_behind_another_nat(self) -> bool:
        """Whether the gateway's own address is private, or shared among a provider's customers: a double NAT."""
        return is_private(self.address) or ipaddress.ip_address(self.address.host) in SHARED


class Stir:
    """Wake all keepers that wait, and those that are busy as soon as they wait."""

    def __init__(self) -> None:
        self.count = 0
        self._event = trio.Event()

    def stir(self) -> None:
        """Wake all."""
        self.count += 1
        self._event.set()
        self._event = trio.Event()

    async def wait_beyond(self, count: int) -> None:
        """Wait until `stir` was called more than `count` times."""
        while self.count <= count:
            await self._event.wait()


@dataclass(kw_only=True, eq=False)
class Keeper:
    """Keep one port mapped at one gateway, by any of the protocols."""

    client: GatewayClient
    internal_port: int
    stir: Stir
    rng: random.Random
    tell: Callable[[Keeper, Mapped | Lost | Failed], None]
    """Called when the mapping changed. `current` is up to date then."""
    current: MappedPort | None = None
    _way: Way | None = None
    """The protocol that granted the mapping, or that will be asked to."""
    _used: dict[MappedBy, Way] = field(default_factory=dict)
    """Protocols by which a mapping may exist at the gateway, one way of each."""
    _looked_s: float = 0.0
    _seen: int = 0

    async def run(self) -> None:
        """Keep the port mapped until cancelled, then give it back."""
        lease = MappingLease(internal_port=self.internal_port, rng=self.rng)
        self._seen = self.stir.count
        event: Event = Tick()
        try:
            while True:
                asked = self._note(lease.handle(event, trio.current_time()))
                event = await (self._ask(asked) if asked is not None else self._wait(lease))
        finally:
            effects = lease.handle(End(), trio.current_time())
            self._note(effects)
            if ReleaseMapping() in effects:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + RELEASE_S):
                    await self._release()

    def _note(self, effects: Sequence[Effect]) -> Ask | None:
        """Report changes of the mapping; return the next request, if there is one."""
        for effect in effects:
            match effect:
                case Mapped(external=external, until_s=until_s):
                    assert self._way is not None
                    self.current = MappedPort(
                        address=external,
                        protocol=self._way.protocol,
                        gateway=str(self.client.gateway),
                        internal_port=self.internal_port,
                        until_s=until_s,
                    )
                    self.tell(self, effect)
                case Lost():
                    self.current = None
                    self.tell(self, effect)
                case Failed():
                    self.tell(self, effect)
                case Ask():
                    return effect
                case ReleaseMapping():
                    pass
        return None

    async def _wait(self, lease: MappingLease) -> Event:
        look_s = self._looked_s + LOOK_S[self._way.protocol] if self.current and self._way else math.inf
        with trio.move_on_at(min(look_s, lease.next_s())):
            await self.stir.wait_beyond(self._seen)
            self._seen = self.stir.count
            return LookAgain()
        if self._way is None or look_s > lease.next_s():
            return Tick()
        self._looked_s = trio.current_time()
        return await self._way.look() or Tick()

    async def _ask(self, asked: Ask) -> Answer:
        if asked.renews and self._way is not None:
            return await self._try(self._way, asked.external_port)
        refusals: list[Refused] = []
        locations: list[str] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._search, locations)
            spoken = await find_spoken(self.client)
            if spoken is not None:
                answer = await self._try(self._datagram_way(spoken), asked.external_port)
                if isinstance(answer, Granted):
                    nursery.cancel_scope.cancel()
                    return answer
                refusals += [answer] if isinstance(answer, Refused) else []
        for url in locations:
            way = UpnpWay(client=self.client, internal_port=self.internal_port, url=url)
            answer = await self._try(way, asked.external_port)
            if isinstance(answer, Granted):
                return answer
            refusals += [answer] if isinstance(answer, Refused) else []
        return _combine(refusals, self.client.own.version)

    async def _search(self, locations: list[str]) -> None:
        """Search UPnP's gateways over IPv4; `upnp_worker` says why IPv6 is missing."""
        if self.client.own.version == 4:
            locations += await find_locations(self.client.own, self.client.gateway.host)

    async def _try(self, way: Way, external_port: int) -> Answer:
        answer = await way.ask(external_port, LIFETIME_S)
        if not isinstance(answer, Refused):
            self._used[way.protocol] = way
        if isinstance(answer, Granted):
            self._way, self._looked_s = way, trio.current_time()
        return answer

    def _datagram_way(self, spoken: MappedBy) -> Way:
        """Return one way for as long as this keeper lives: its nonce is what makes a mapping ours."""
        if (known := self._used.get(spoken)) is not None:
            return known
        if spoken is MappedBy.PCP:
            return PcpWay(client=self.client, internal_port=self.internal_port)
        return NatPmpWay(client=self.client, internal_port=self.internal_port)

    async def _release(self) -> None:
        async with trio.open_nursery() as nursery:
            for way in self._used.values():
                nursery.start_soon(way.release)


def _combine(refusals: Sequence[Refused], version: int) -> Answer:
    """Return why nothing was granted, by all that were asked."""
    if not refusals:
        asked = "PCP, NAT-PMP or UPnP" if version == 4 else "PCP, the only protocol for IPv6 that is spoken here"
        return NoAnswer(why=f"the router does not answer {asked}")
    return Refused(
        why="; ".join(dict.fromkeys(one.why for one in refusals)),
        is_conflict=all(one.is_conflict for one in refusals),
        wait_s=max(one.wait_s for one in refusals),
    )
