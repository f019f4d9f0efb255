"""What a node claims of its work: prices, costs, and the energy that it took.

Money is counted in millionths of one unit of the swarm's currency (`micros`), as integers, so that sums are exact. A
claim is believed as far as the lease's own timing bears it out; that judgement is the learner's. Joules
are the node's word alone: nothing is admitted, rejected or paid by them, and a claim that no machine could draw is told
from one that it could (`is_believed`).
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
    """What a peer asks for an hour of its time while active: millionths of `currency` per hour; zero is a gift."""

    micros_per_hour: Annotated[int, Meta(ge=0, le=MAX_MICROS_PER_HOUR)] = 0
    currency: Annotated[str, Meta(min_length=3, max_length=3, pattern=r"^[A-Z]*\Z")] = CURRENCY


class CostClaim(Message, frozen=True, kw_only=True):
    """What one completion took: wall seconds of the engine, this completion's share of its batch."""

    engine_s: Seconds


def cost_micros(seconds: float, price: Price) -> int:
    """Cost of `seconds` at `price`, in millionths of its currency, rounded to the nearest."""
    return round(seconds * price.micros_per_hour / 3600)


def per_thousand_tokens(micros: int, tokens: int) -> float | None:
    """Cost in whole currency units per 1000 tokens; None when there are no tokens to spread it over."""
    return micros / MICROS / tokens * 1000 if tokens else None


JOULES_PER_KWH = 3_600_000


MAX_ENERGY_SOURCES = 4
"""As many as there are: a node says at most one sum of each."""


MAX_WATTS = 10_000.0
"""The most that one node is believed to draw: a host with eight GPUs of a kilowatt each."""


LEAST_S = 60.0
"""A claim is held against so much time at least: a node that has just come tells what starting took."""


class EnergySource(OpenEnum):
    """Where joules come from: the counters of NVIDIA's GPUs, those of the processors, typical watts of such a device
    times seconds of generation, or watts that the owner gave times the same.
    """

    NVML = "nvml"
    RAPL = "rapl"
    TABLE = "table"
    OWNER = "owner"
    OTHER = "other"


class Energy(msgspec.Struct, frozen=True, array_like=True):
    """So many joules, from this source, since the node started."""

    source: EnergySource
    joules: Annotated[float, Meta(ge=0, le=MAX_JOULES)]


EnergyList = Annotated[list[Energy], Meta(max_length=MAX_ENERGY_SOURCES)]


def is_believed(joules: float, seconds: float) -> bool:
    """Whether one node can have drawn `joules` in `seconds`: only it can read its meters, and one that went wrong, or a
    peer that invents, must not spoil the sums of all others."""
    return joules <= MAX_WATTS * max(seconds, LEAST_S)
