"""How soon a file can reach everybody, whatever the method. Rates in Mbit/s, sizes in bytes, times in seconds.

What always holds: no schedule beats these bounds. They leave out headers (our rates are payload), latency and disks, so
nothing reaches them either. In the fluid model, where chunks are infinitely small, the first is attained (Kumar and
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
    """The soonest that the last peer can have the file.

    Every bit leaves the source once; the slowest receiver takes all of it in; and somebody uploads it for each peer.
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
    """The soonest that the last peer can have the file, where only some pairs exchange bytes at all.

    Peers come in groups: `ups` are their uplinks, `down` is the slowest downlink of all, and peers of two groups, or
    two of one group, exchange bytes where these `can_meet`. The source reaches everybody. What the peers of some
    groups G take in is |G| files, and only whoever meets one of G sends any of it:

        T >= size * |G| / (source_up + sum of the uplinks of all who can meet somebody in G)      for every such G
        T >= size / source_up,  T >= size / down

    Fewer peers of a group than all need less and have the same senders, so whole groups give the largest bound. Where
    all can meet, the G of everybody is the only one that counts: `all_peers_bound_s`.
    """
    size = megabits(size_bytes)
    found = [size / source_up, size / down]
    for some in chain.from_iterable(combinations(ups, count) for count in range(1, len(ups) + 1)):
        senders = [one for one in ups if any(can_meet(one, other) for other in some)]
        needed = size * sum(len(ups[one]) for one in some)
        found.append(needed / (source_up + sum(sum(ups[one]) for one in senders)))
    return max(found)


def peer_bound_s(size_bytes: int, source_up: float, down: float) -> float:
    """The soonest that one peer can have the file, if everybody worked for it."""
    return megabits(size_bytes) / min(source_up, down)
