"""Decide which of the addresses at which others see us to believe: those on which several separate origins agree.

    an observer at an origin said that it sees us at an address --> believed, once AGREEING origins say the same
    the connection ended --> it says so no more

An address that only one observer names may be a lie, or may be true for that observer alone: some routers show each
observer a different port. A pure core.

Invariants:

- An address is believed only while as many origins as needed see us there.
- One origin counts once, whatever it says.
- At most MAX_OBSERVERS are remembered, the newest.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from swarm.libp2p.sockets.addresses import Address

MAX_OBSERVERS = 64
"""Connections whose peers' claims are remembered: more than a node has neighbours. Beyond, the oldest is forgotten."""

AGREEING = 2
"""Origins that must agree. One liar cannot make us believe anything. Two have no reason to lie: a peer that knocks at a
false address finds nobody."""


@dataclass(frozen=True, kw_only=True)
class _Sight:
    origin: str
    address: Address


@dataclass(kw_only=True)
class ObservedAddresses:
    """Remember where each connection's peer sees us, and decide where we are."""

    _sights: OrderedDict[int, _Sight] = field(default_factory=OrderedDict)
    """Claims by connection."""

    def note(self, connection: int, origin: str, address: Address) -> None:
        """Note that the peer at the other end of this connection, at `origin`, sees us at `address`."""
        self._sights[connection] = _Sight(origin=origin, address=address)
        self._sights.move_to_end(connection)
        if len(self._sights) > MAX_OBSERVERS:
            self._sights.popitem(last=False)

    def forget(self, connection: int) -> None:
        """Forget the claim of a connection that is gone."""
        self._sights.pop(connection, None)

    def candidates(self) -> list[Address]:
        """Return where others may look for us, most origins first.

        These are the believed addresses. For an address family in which no two origins agree, they are all addresses at
        which any peer sees us: worth a try, no more. If two agree, the others are left out, because one liar could
        otherwise make peers that want to meet us knock at any address that it names.
        """
        believed = self.believed()
        kinds = {address.kind for address in believed}
        others = [address for address, _ in self._by_origins().most_common() if address.kind not in kinds]
        return [*believed, *others]

    def believed(self) -> list[Address]:
        """Return the addresses on which so many origins agree that we may tell them to others."""
        return [address for address, origins in self._by_origins().most_common() if origins >= AGREEING]

    def is_mapped_anew(self) -> bool:
        """Return whether a router shows each observer a different port: no two origins agree on an IPv4 address."""
        ports = {sight.origin: sight.address for sight in self._sights.values() if sight.address.kind == "ip4"}
        return len(ports) >= AGREEING and len(set(ports.values())) == len(ports)

    def _by_origins(self) -> Counter[Address]:
        latest = {(sight.origin, sight.address.kind): sight.address for sight in self._sights.values()}
        return Counter(latest.values())
