"""Define what a node claims about its work: prices, costs and energy.

Money is counted in millionths of one unit of the swarm's currency (`micros`), as integers, so that sums are exact. The
learner believes a claim of time as far as the timing of the lease supports it. Only the node itself knows its joules:
no record is admitted or rejected because of them, and nothing is paid. `is_believed` excludes claims that no machine
can reach.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.core.codec import Message, OpenEnum, Seconds
from protocol.core.limits import MAX_JOULES, MAX_MICROS_PER_HOUR

MICROS = 1_000_000
CURRENCY = "USD"


class Price(Message, frozen=True, kw_only=True):
    """The price that a peer asks for its active time, in millionths of `currency` per hour. Zero means free."""

    micros_per_hour: Annotated[int, Meta(ge=0, le=MAX_MICROS_PER_HOUR)] = 0
    currency: Annotated[str, Meta(min_length=3, max_length=3, pattern=r"^[A-Z]*\Z")] = CURRENCY


class CostClaim(Message, frozen=True, kw_only=True):
    """The cost of one completion: its share of the engine's wall seconds for the batch."""

    engine_s: Seconds


def cost_micros(seconds: float, price: Price) -> int:
    """Return the cost of `seconds` at `price`, in millionths of its currency, rounded to the nearest."""
    return round(seconds * price.micros_per_hour / 3600)


def per_thousand_tokens(micros: int, tokens: int) -> float | None:
    """Return the cost in whole currency units per 1000 tokens; None if there are no tokens."""
    return micros / MICROS / tokens * 1000 if tokens else None


JOULES_PER_KWH = 3_600_000


MAX_ENERGY_SOURCES = 4
"""Number of sources in one message. There are four, and a node reports at most one sum for each."""


MAX_WATTS = 10_000.0
"""Largest believed power of one node: a host with eight GPUs of a kilowatt each."""


LEAST_S = 60.0
"""Shortest time, in seconds, that a claim is compared with. A node that has just started reports the energy of its
start."""


class EnergySource(OpenEnum):
    """How joules were measured: by the counters of NVIDIA's GPUs (NVML) or of the processors (RAPL), or as watts times
    seconds of generation. The watts are typical of such a device (TABLE), or the owner stated them (OWNER).
    """

    NVML = "nvml"
    RAPL = "rapl"
    TABLE = "table"
    OWNER = "owner"
    OTHER = "other"


class Energy(msgspec.Struct, frozen=True, array_like=True):
    """The joules of one source since the node started."""

    source: EnergySource
    joules: Annotated[float, Meta(ge=0, le=MAX_JOULES)]


EnergyList = Annotated[list[Energy], Meta(max_length=MAX_ENERGY_SOURCES)]


def is_believed(joules: float, seconds: float) -> bool:
    """Return whether one node can have used `joules` in `seconds`.

    Only the node can read its meters. A faulty meter, or a peer that invents values, must not spoil the total.
    """
    return joules <= MAX_WATTS * max(seconds, LEAST_S)
