"""Define the measured swarms: a source with an uplink of 50 Mbit/s, and peers, some of them behind home routers.

Invariants:

- A scenario consists only of its links and routers.
- The payload is the same for all scenarios, except for its size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from benchmarks.network.bound import met_peers_bound_s, peer_bound_s
from benchmarks.network.emulation import Node
from benchmarks.network.routers import KINDS, Kind, can_meet

MIB = 1 << 20
HALF_TRIP_MS = 7.5
"""Added on the way into the switch and out of it, at both ends: a round trip of 30 ms."""

FASTEST = 10_000.0
"""Mbit/s, where there are no links: faster than two ends on one machine."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """The nodes of a run, and the bytes that the peers receive.

    `kinds` are the routers of the peers. If it is empty, no peer has a router, and all are in one network with the
    source, which is in the open internet otherwise. `on_loopback`: there are no links, and only the machine is the
    limit.
    """

    name: str
    source: Node
    peers: tuple[Node, ...]
    size_bytes: int
    kinds: tuple[Kind, ...] = ()
    on_loopback: bool = False

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All nodes, the source first."""
        return (self.source, *self.peers)

    @property
    def bound_s(self) -> float:
        """The soonest time at which the last peer can have everything, if every pair that can connect does."""
        ups: dict[Kind, list[float]] = {}
        for peer, kind in zip(self.peers, self.kinds or [KINDS["open"]] * len(self.peers), strict=True):
            ups.setdefault(kind, []).append(peer.up)
        down = min(peer.down for peer in self.peers)
        return met_peers_bound_s(self.size_bytes, self.source.up, ups, down, can_meet)

    @property
    def num_bulk_pairs(self) -> int:
        """The number of pairs of peers that can exchange bytes, if all behind routers say how they can be reached."""
        return sum(len(self.partners(peer.name)) for peer in self.peers) // 2

    def partners(self, name: str, *, punches: bool = True) -> list[str]:
        """Return the peers that this one can connect to behind their routers; none without routers.

        Without `punches`, one of the two must be in the open.
        """
        kinds = dict(zip([peer.name for peer in self.peers], self.kinds, strict=True)) if self.kinds else {}
        return [
            other
            for other, kind in kinds.items()
            if name in kinds
            and other != name
            and can_meet(kinds[name], kind)
            and (punches or kinds[name].is_public or kind.is_public)
        ]

    @property
    def mean_peer_bound_s(self) -> float:
        """The mean over peers of the soonest time at which each could have everything."""
        bounds = [peer_bound_s(self.size_bytes, self.source.up, peer.down) for peer in self.peers]
        return sum(bounds) / len(bounds)

    def scaled(self, factor: float) -> Scenario:
        """Return the same scenario with all rates times `factor`."""
        slower = [replace(node, up=node.up * factor, down=node.down * factor) for node in self.nodes]
        return replace(self, source=slower[0], peers=tuple(slower[1:]))

    def sized(self, size_bytes: int) -> Scenario:
        """Return the same scenario with a payload of this size."""
        return replace(self, size_bytes=size_bytes)


def _scenario(
    name: str,
    rates: Iterable[tuple[float, float]],
    *,
    delay_ms: float = 0.0,
    mib: int = 64,
    kinds: Iterable[str] = (),
) -> Scenario:
    """Return a scenario; `rates` are (up, down) of the peers, `kinds` the names of their routers' kinds."""
    return Scenario(
        name=name,
        source=Node(name="s", up=50, down=50, delay_ms=delay_ms),
        peers=tuple(Node(name=f"p{i}", up=up, down=down, delay_ms=delay_ms) for i, (up, down) in enumerate(rates, 1)),
        size_bytes=mib * MIB,
        kinds=tuple(KINDS[kind] for kind in kinds),
    )


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        _scenario("n2", [(50, 50)] * 2),
        _scenario("n4", [(50, 50)] * 4),
        _scenario("n8", [(50, 50)] * 8),
        _scenario("n8rtt30", [(50, 50)] * 8, delay_ms=HALF_TRIP_MS),
        _scenario("up8", [(100, 100), (50, 100), (20, 100), (10, 100)] * 2),
        _scenario("mix4", [(100, 100), (50, 50), (20, 20), (10, 10)], mib=32),
        _scenario("nat8", [(50, 50)] * 8, kinds=["port"] * 8),
        _scenario("nat8mix", [(50, 50)] * 8, kinds=["open"] * 2 + ["port"] * 4 + ["symmetric"] * 2),
    )
}
"""n2 is for a quick check; n4 and n8 have equal links, and n8rtt30 also has latency. up8 has fast downlinks and slow
uplinks, as homes have. In mix4 the slowest downlink is the bound, and the mean over peers tells more. In nat8 all home
routers can be punched, in nat8mix only some."""

LARGE = "large"
SCENARIOS[LARGE] = Scenario(
    name=LARGE,
    source=Node(name="s", up=FASTEST, down=FASTEST),
    peers=(Node(name="p1", up=FASTEST, down=FASTEST),),
    size_bytes=3072 * MIB,
    on_loopback=True,
)
"""One peer and a model of 3 GiB, as fast as the machine is: it measures only the cost of a byte."""
