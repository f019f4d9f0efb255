"""What work took of the mains: joules as a node reads them, and how far they are believed.

Joules are a claim: nobody but the node can read its meters. What always holds: a claim that no such machine could draw
is told from one that it could (`is_believed`), so that a meter that went wrong, or a peer that invents, does not spoil
the sums of all others. Nothing is admitted, refused or paid by it.
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.core.limits import MAX_JOULES

JOULES_PER_KWH = 3_600_000

MAX_ENERGY_SOURCES = 4
"""As many as there are: a node says at most one sum of each."""

MAX_WATTS = 10_000.0
"""The most that one node is believed to draw: a host with eight GPUs of a kilowatt each."""

LEAST_S = 60.0
"""A claim is held against so much time at least: a node that has just come tells what starting took."""


class EnergySource(Enum):
    """Where joules come from: the counters of NVIDIA's GPUs, those of the processors, typical watts of such a device
    times seconds of generation, or watts that the owner gave times the same.

    `OTHER` is how a reader sees a source younger than itself; it is never sent.
    """

    NVML = "nvml"
    RAPL = "rapl"
    TABLE = "table"
    OWNER = "owner"
    OTHER = "other"

    @classmethod
    def _missing_(cls, value: object) -> EnergySource:
        return cls.OTHER


class Energy(msgspec.Struct, frozen=True, array_like=True):
    """So many joules, from this source, since the node started."""

    source: EnergySource
    joules: Annotated[float, Meta(ge=0, le=MAX_JOULES)]


EnergyList = Annotated[list[Energy], Meta(max_length=MAX_ENERGY_SOURCES)]


def is_believed(joules: float, seconds: float) -> bool:
    """Whether one node can have drawn `joules` in `seconds`."""
    return joules <= MAX_WATTS * max(seconds, LEAST_S)
