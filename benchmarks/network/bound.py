"""How soon a file can reach everybody, whatever the method. Rates in Mbit/s, sizes in bytes, times in seconds.

What always holds: no schedule beats these bounds. They leave out headers (our rates are payload), latency and disks, so
nothing reaches them either. In the fluid model, where chunks are infinitely small, the first is attained (Kumar and
Ross, "Peer-assisted file distribution: the minimum distribution time", 2006).
"""

from __future__ import annotations

from collections.abc import Sequence


def megabits(size_bytes: float) -> float:
    return size_bytes * 8 / 1e6


def all_peers_bound_s(size_bytes: int, source_up: float, ups: Sequence[float], downs: Sequence[float]) -> float:
    """The soonest that the last peer can have the file.

    Every bit leaves the source once; the slowest receiver takes all of it in; and somebody uploads it for each peer.
    """
    size = megabits(size_bytes)
    return max(size / source_up, size / min(downs), len(ups) * size / (source_up + sum(ups)))


def peer_bound_s(size_bytes: int, source_up: float, down: float) -> float:
    """The soonest that one peer can have the file, if everybody worked for it."""
    return megabits(size_bytes) / min(source_up, down)
