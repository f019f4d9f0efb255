"""Compute how soon a file can reach all peers, by any method. Rates in Mbit/s, sizes in bytes, times in seconds.

Invariant: no schedule beats these bounds. They leave out headers (our rates are payload), latency and disks, so no real
schedule reaches them either. In the fluid model, where chunks are infinitely small, the first is attained (Kumar and
Ross, "Peer-assisted file distribution: the minimum distribution time", 2006).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain, combinations
from typing import TypeVar

Group = TypeVar("Group")


def megabits(size_bytes: float) -> float:
    return size_bytes * 8 / 1e6


def all_peers_bound_s(size_bytes: int, source_up: float, ups: Sequence[float], downs: Sequence[float]) -> float:
    """Return the soonest time at which the last peer can have the file.

    Every bit leaves the source once; the slowest receiver receives all of it; and some node uploads it for each peer.
    """
    size = megabits(size_bytes)
    return max(size / source_up, size / min(downs), len(ups) * size / (source_up + sum(ups)))


def met_peers_bound_s(
    size_bytes: int,
    source_up: float,
    ups: Mapping[Group, Sequence[float]],
    down: float,
    can_meet: Callable[[Group, Group], bool],
) -> float:
    """Return the soonest time at which the last peer can have the file, where only some pairs exchange bytes.

    Peers come in groups: `ups` are their uplinks, and `down` is the slowest downlink of all. Peers of two groups, or
    two of one group, exchange bytes where these `can_meet`. The source reaches all peers. The peers of some groups G
    receive |G| files, and only peers that can connect to one of G send any of it:

        T >= size * |G| / (source_up + sum of the uplinks of all peers that can connect to one of G)   for every such G
        T >= size / source_up,  T >= size / down

    A part of a group needs less than the whole and has the same senders, so whole groups give the largest bound. Where
    all can connect, only the G of all peers counts: `all_peers_bound_s`.
    """
    size = megabits(size_bytes)
    found = [size / source_up, size / down]
    for some in chain.from_iterable(combinations(ups, count) for count in range(1, len(ups) + 1)):
        senders = [one for one in ups if any(can_meet(one, other) for other in some)]
        needed = size * sum(len(ups[one]) for one in some)
        found.append(needed / (source_up + sum(sum(ups[one]) for one in senders)))
    return max(found)


def peer_bound_s(size_bytes: int, source_up: float, down: float) -> float:
    """Return the soonest time at which one peer can have the file, if all nodes worked for it."""
    return megabits(size_bytes) / min(source_up, down)
