"""Where others see us: believed where several agree who do not sit together.

    an observer at an origin said that it sees us at an address --> believed, once AGREEING origins say the same
    the connection ended --> it says so no more

What only one says may be a lie. Or it is true of that one alone: some routers show every observer another port. A pure
core.

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
"""More than a node has neighbours; beyond, the oldest is forgotten."""

AGREEING = 2
"""Origins that must agree. One liar cannot make us believe anything, and two have reason to lie to nobody: who knocks
where we are not, finds nobody."""


@dataclass(frozen=True, kw_only=True)
class _Sight:
    origin: str
    address: Address


@dataclass(kw_only=True)
class ObservedAddresses:
    """See the module's paragraph. `is_alone`: there is one observer in all, so its word must do."""

    _sights: OrderedDict[int, _Sight] = field(default_factory=OrderedDict)
    """By connection."""

    def note(self, connection: int, origin: str, address: Address) -> None:
        """The peer at the other end of this connection, at `origin`, sees us at `address`."""
        self._sights[connection] = _Sight(origin=origin, address=address)
        self._sights.move_to_end(connection)
        if len(self._sights) > MAX_OBSERVERS:
            self._sights.popitem(last=False)

    def forget(self, connection: int) -> None:
        """This connection is gone."""
        self._sights.pop(connection, None)

    def candidates(self) -> list[Address]:
        """Where others may look for us, by most origins first: where we are believed to be, and of a family of
        addresses in which no two agree, where anybody sees us. That is worth a try, no more.

        Else one liar could have those who want to meet us knock at whomever it names.
        """
        believed = self.believed()
        kinds = {address.kind for address in believed}
        others = [address for address, _ in self._by_origins().most_common() if address.kind not in kinds]
        return [*believed, *others]

    def believed(self) -> list[Address]:
        """Where we are, by so many that it can be told to others."""
        return [address for address, origins in self._by_origins().most_common() if origins >= AGREEING]

    def is_mapped_anew(self) -> bool:
        """Whether a router shows each observer another port: two of the same family of addresses never agree."""
        ports = {sight.origin: sight.address for sight in self._sights.values() if sight.address.kind == "ip4"}
        return len(ports) >= AGREEING and len(set(ports.values())) == len(ports)

    def _by_origins(self) -> Counter[Address]:
        latest = {(sight.origin, sight.address.kind): sight.address for sight in self._sights.values()}
        return Counter(latest.values())
