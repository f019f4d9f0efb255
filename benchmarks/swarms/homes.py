"""Simulate a hundred homes in virtual time: some pairs cannot connect, and the learner's rule chooses neighbours.

`MIXES` says how many peers can be dialled, can be punched, or only reach others. The learner's rule
(`swarm/work/neighbour_graph.py`) decides who is whose neighbour, and the cores of nodes do the rest. The bound is that
of the pairs that can connect at all, whoever their neighbours are.

Invariants:

- No peer joins or leaves, so that the bound is exact in the fluid model, except for who can connect.
- The same mix and seed give the same swarm.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.network.bound import met_peers_bound_s
from benchmarks.swarms.chunk_simulation import Peer, Scenario, Simulation
from benchmarks.swarms.virtual_links import Link, Router
from protocol.core.ids import PeerId
from protocol.core.limits import MIB
from protocol.versions.chunking import chunk_size_for
from swarm.work.neighbour_graph import Meets, can_meet, neighbourhoods

MIXES: Mapping[str, Mapping[Meets, int]] = {
    "homes": {Meets.MOST: 100},
    "homes_mixed": {Meets.ALL: 20, Meets.MOST: 50, Meets.OPEN_ONES: 30},
}
"""The first has only routers that can be punched. In the second, seven of ten routers can be reached in one way or
another (arXiv 2510.27500), two of these by a port that their owners have opened."""


@dataclass(frozen=True, kw_only=True)
class HomesRun:
    """The result of one simulation: when the last peer of each kind was done, over the bound; and source copies."""

    bound_s: float
    done_over_bound: Mapping[Meets, float]
    copies: float

    @property
    def last_over_bound(self) -> float:
        return max(self.done_over_bound.values())


def simulate_homes(
    mix: Mapping[Meets, int], links: Sequence[Link], source: Link, router: Router, *, size_mib: int, seed: int
) -> HomesRun:
    """Run the simulation, with a link for each peer of the mix, dealt out at random."""
    kinds = [meets for meets, count in mix.items() for _ in range(count)]
    random.Random(f"homes {seed}").shuffle(kinds)
    size = size_mib * MIB

    def beside(names: Collection[PeerId]) -> Mapping[PeerId, Collection[PeerId]]:
        return neighbourhoods(dict(zip(names, kinds, strict=True)))

    scenario = Scenario(
        source=source,
        peers=[Peer(link=link) for link in links],
        size_bytes=size,
        chunk_bytes=chunk_size_for(size),
        seed=seed,
        router=router,
        neighbours=beside,
    )
    ups: dict[Meets, list[float]] = {meets: [] for meets in mix}
    for meets, link in zip(kinds, links, strict=True):
        ups[meets].append(link.up)
    bound_s = met_peers_bound_s(size, source.up, ups, min(link.down for link in links), can_meet)
    outcome = Simulation(scenario).run()
    done: dict[Meets, float] = dict.fromkeys(mix, 0.0)
    for meets, done_s in zip(kinds, outcome.done_s, strict=True):
        done[meets] = max(done[meets], float("inf") if done_s is None else done_s / bound_s)
    return HomesRun(bound_s=bound_s, done_over_bound=done, copies=outcome.source_bytes / size)
