"""When a version is where: T_bcast of every machine, from the size of what travels and from what the lines carry.

Pure. The learner sends each chunk once and machines pass it on, so with G the size, B0 the learner's uplink, u_i and
d_i what machine i sends and receives, all of N machines have the version no sooner than (Mundinger, Weber and Weiss
2008; Kumar and Ross 2006 attain it with infinitely small chunks)

    max(G / B0,  G / min d_i,  N G / (B0 + sum u_i))

and machine i no sooner than with its own d_i in the middle. Swarms of ours take OVER_BOUND times that:

    T_i = OVER_BOUND * max(G / B0,  G / d_i,  N G / (B0 + sum u_i)) + install

What always holds: N counts every machine of the pool, whether it is paid for or stands by, since those that stand by
hold the newest version as well. Times are seconds, sizes bytes, lines millions of bits a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from learner.provisioning.model.capacity import QUORUM

OVER_BOUND = 1.16
"""The worst of what real nodes took, over the bound: 1.05 to 1.16 (docs/benchmarks.md, relay)."""

_BITS_PER_MBIT = 1e6

_ROUNDING = 1e-9
"""Ten of eleven machines are a share of QUORUM, whatever a float makes of it."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """What one machine sends and receives, in Mbit/s; nothing sent is nothing passed on."""

    up_mbit: float
    down_mbit: float


def source_s(size_bytes: float, source_mbit: float, lines: Sequence[Line]) -> float:
    """How long a version keeps the learner's uplink, and whoever passes it on, busy; slow receivers left out."""
    return OVER_BOUND * _sent_s(size_bytes, source_mbit, lines)


def arrival_s(
    size_bytes: float, source_mbit: float, line: Line, everybody: Sequence[Line], *, install_s: float = 0.0
) -> float:
    """T_i of the module's paragraph for the machine behind `line`, one of `everybody`; infinity where nothing comes."""
    sent_s = max(_sent_s(size_bytes, source_mbit, everybody), _over(size_bytes, line.down_mbit))
    return OVER_BOUND * sent_s + install_s


def quorum_s(times: Sequence[float]) -> float:
    """T_bcast as the paper has it: when a share of QUORUM of the machines have the version. `times` is not empty."""
    return sorted(times)[math.ceil(QUORUM * len(times) - _ROUNDING) - 1]


def _sent_s(size_bytes: float, source_mbit: float, lines: Sequence[Line]) -> float:
    together = source_mbit + math.fsum(line.up_mbit for line in lines)
    return max(_over(size_bytes, source_mbit), _over(len(lines) * size_bytes, together))


def _over(size_bytes: float, mbit: float) -> float:
    return 8 * size_bytes / (_BITS_PER_MBIT * mbit) if mbit > 0 else math.inf
