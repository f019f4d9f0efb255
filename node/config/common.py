"""Types of keys, and sections, that the operator's file and the volunteer's file share."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import FieldInfo

from protocol.accounting.claims import MAX_WATTS
from protocol.core.limits import MAX_ADDRESS_CHARS, MAX_ADDRESSES, MAX_NAME_CHARS

Positive = Annotated[int, Meta(ge=1, le=1 << 40)]
PositiveFloat = Annotated[float, Meta(gt=0, le=1e9)]
Share = Annotated[float, Meta(ge=0, le=1)]
PositiveShare = Annotated[float, Meta(gt=0, le=1)]
Text = Annotated[str, Meta(max_length=MAX_NAME_CHARS)]

Mbit = Annotated[float, Meta(ge=0.1, le=100_000, examples=[100.0])]
"""A second. Below a tenth of one, handshakes and heartbeats would not be over in time."""

BITS_PER_MBIT = 1e6

GB = 1_000_000_000
Gigabytes = Annotated[float, Meta(gt=0, le=1e6, examples=[4.0])]

EngineDevice = Annotated[str, Meta(pattern="^(auto|cpu|mps|cuda(:[0-9]{1,2})?)$")]
"""Where an engine runs. Whether it is there is the engine's to find out: the node knows no torch, which keeps a GPU's
number in a byte."""

AddressList = Annotated[list[Annotated[str, Meta(max_length=MAX_ADDRESS_CHARS)]], Meta(max_length=MAX_ADDRESSES)]


def default_of(key: FieldInfo) -> Any:
    """What holds where a file says nothing; NODEFAULT where it must say something."""
    return key.default if key.default_factory is msgspec.NODEFAULT else key.default_factory()


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section: an unknown key is an error, so that a typing mistake is not a silent default."""


class PriceSection(Section, frozen=True, kw_only=True):
    """What an hour of this machine costs; only for the report."""

    per_hour: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Price of an hour, in whole units of the currency."""
    currency: Annotated[str, Meta(pattern="^[A-Z]{3}$")] = "USD"
    """Three capital letters."""


class EnergySection(Section, frozen=True, kw_only=True):
    """What this machine takes of the mains. See [energy](volunteer.md#energy)."""

    report: bool = True
    """Whether joules that the learner's machine takes, where they can be read, are in the ledger."""
    watts: Annotated[float, Meta(gt=0, le=MAX_WATTS, examples=[400.0])] | None = None
    """Watts that the machine takes, if you know; then no meter and no table is asked."""
