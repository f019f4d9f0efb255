"""Compute T_bcast of every machine, from the size of a version and the bandwidth of the machines.

Pure. The learner sends each chunk once and machines relay it. Let G be the size, B0 the learner's uplink, and u_i and
d_i what machine i sends and receives. Then all of N machines have the version no sooner than (Mundinger, Weber and
Weiss 2008; Kumar and Ross 2006 attain it with infinitely small chunks)

    max(G / B0,  G / min d_i,  N G / (B0 + sum u_i))

and machine i no sooner than with its own d_i in the middle. Our swarms take OVER_BOUND times that:

    T_i = OVER_BOUND * max(G / B0,  G / d_i,  N G / (B0 + sum u_i)) + install

Invariants:

- N counts every machine of the pool, active or on standby, since those on standby hold the newest version as well.
- Times are seconds, sizes bytes, bandwidths millions of bits a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from learner.provisioning.model.capacity import QUORUM

OVER_BOUND = 1.16
"""The largest ratio of what real nodes took to the bound: they took 1.05 to 1.16 (docs/explain/benchmarks.md,
relay)."""

_BITS_PER_MBIT = 1e6

_ROUNDING = 1e-9
"""Tolerance for rounding: ten of eleven machines are a share of QUORUM."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """The bandwidth of one machine in both directions, in Mbit/s. A machine that sends nothing relays nothing."""

    up_mbit: float
    down_mbit: float


def source_s(size_bytes: float, source_mbit: float, links: Sequence[Link]) -> float:
    """Return how many seconds a version keeps the learner's uplink, and the relaying machines, busy. Slow receivers do
    not count."""
    return OVER_BOUND * _sent_s(size_bytes, source_mbit, links)


def arrival_s(
    size_bytes: float, source_mbit: float, link: Link, everybody: Sequence[Link], *, install_s: float = 0.0
) -> float:
    """Return T_i (see above) for the machine behind `link`, which is one of `everybody`; infinity if nothing
    arrives."""
    sent_s = max(_sent_s(size_bytes, source_mbit, everybody), _over(size_bytes, link.down_mbit))
    return OVER_BOUND * sent_s + install_s


def quorum_s(times: Sequence[float]) -> float:
    """Return T_bcast as the paper defines it: when a share QUORUM of the machines have the version. `times` is not
    empty."""
    return sorted(times)[math.ceil(QUORUM * len(times) - _ROUNDING) - 1]


def _sent_s(size_bytes: float, source_mbit: float, links: Sequence[Link]) -> float:
    together = source_mbit + math.fsum(link.up_mbit for link in links)
    return max(_over(size_bytes, source_mbit), _over(len(links) * size_bytes, together))


def _over(size_bytes: float, mbit: float) -> float:
    return 8 * size_bytes / (_BITS_PER_MBIT * mbit) if mbit > 0 else math.inf
