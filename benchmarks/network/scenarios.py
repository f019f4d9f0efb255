"""The swarms that are measured: a source with an uplink of 50 Mbit/s, and peers, perhaps behind home routers.

What always holds: the links and the routers of a scenario are all of it; what is sent is the same for all of them but
for its size.
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
    """Who is there, and how many bytes they are to have. `kinds` are the routers of the peers; empty: nobody has one,
    and all of them are in one network with the source, which is in the open internet otherwise. `on_loopback`: there
    are no links, and nothing but the machine is the limit.
    """

    name: str
    source: Node
    peers: tuple[Node, ...]
    size_bytes: int
    kinds: tuple[Kind, ...] = ()
    on_loopback: bool = False

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The source first."""
        return (self.source, *self.peers)

    @property
    def bound_s(self) -> float:
        """The soonest that the last peer can have everything, if whoever can meet does."""
        ups: dict[Kind, list[float]] = {}
        for peer, kind in zip(self.peers, self.kinds or [KINDS["open"]] * len(self.peers), strict=True):
            ups.setdefault(kind, []).append(peer.up)
        down = min(peer.down for peer in self.peers)
        return met_peers_bound_s(self.size_bytes, self.source.up, ups, down, can_meet)

    @property
    def num_bulk_pairs(self) -> int:
        """How many pairs of peers can exchange bytes, if everybody with a router has told how it is reached."""
        return sum(len(self.partners(peer.name)) for peer in self.peers) // 2

    def partners(self, name: str, *, punches: bool = True) -> list[str]:
        """Which peers the one of this name can meet behind their routers, none where there are none; where nobody
        `punches`, one of both must be in the open.
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
        """The mean over peers of the soonest that each could have everything."""
        bounds = [peer_bound_s(self.size_bytes, self.source.up, peer.down) for peer in self.peers]
        return sum(bounds) / len(bounds)

    def scaled(self, factor: float) -> Scenario:
        """The same with all rates times `factor`."""
        slower = [replace(node, up=node.up * factor, down=node.down * factor) for node in self.nodes]
        return replace(self, source=slower[0], peers=tuple(slower[1:]))

    def sized(self, size_bytes: int) -> Scenario:
        """The same with so much to send."""
        return replace(self, size_bytes=size_bytes)


def _scenario(
    name: str,
    rates: Iterable[tuple[float, float]],
    *,
    delay_ms: float = 0.0,
    mib: int = 64,
    kinds: Iterable[str] = (),
) -> Scenario:
    """`rates` are (up, down) of the peers, `kinds` the names of their routers' kinds."""
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
"""Equal links, few and many; with latency; fast downlinks behind slow uplinks, as homes have; everything mixed, where
the slowest downlink is the bound and the mean over peers tells more; behind home routers, which all can be punched, or
half of them. n2 is for a quick look."""

LARGE = "large"
SCENARIOS[LARGE] = Scenario(
    name=LARGE,
    source=Node(name="s", up=FASTEST, down=FASTEST),
    peers=(Node(name="p1", up=FASTEST, down=FASTEST),),
    size_bytes=3072 * MIB,
    on_loopback=True,
)
"""One peer and a model of 3 GiB, as fast as the machine is: the cost of a byte, and nothing else."""
