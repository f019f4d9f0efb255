"""Define types of keys, and sections, that the operator's file and the volunteer's file share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

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
"""Million bits per second. Below 0.1, handshakes and heartbeats would not end in time."""

BITS_PER_MBIT = 1e6

GB = 1_000_000_000
Gigabytes = Annotated[float, Meta(gt=0, le=1e6, examples=[4.0])]

EngineDevice = Annotated[str, Meta(pattern="^(auto|cpu|mps|cuda(:[0-9]{1,2})?)$")]
"""Device of an engine. The engine finds out whether it exists, because the node does not import torch. Two digits
suffice: torch keeps a GPU's number in one byte."""

AddressList = Annotated[list[Annotated[str, Meta(max_length=MAX_ADDRESS_CHARS)]], Meta(max_length=MAX_ADDRESSES)]


def default_of(key: FieldInfo) -> Any:
    """Return the default of a key; NODEFAULT if the key is required."""
    return key.default if key.default_factory is msgspec.NODEFAULT else key.default_factory()


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every section. An unknown key is an error, so that a typing mistake never becomes a silent default."""


class PriceSection(Section, frozen=True, kw_only=True):
    """Price of this machine, for reports and for plans, which prefer cheap peers."""

    per_hour: Annotated[float, Meta(ge=0, le=1e6)] = 0.0
    """Price of an hour, in whole units of the currency (0 to 1,000,000)."""
    currency: Annotated[str, Meta(pattern="^[A-Z]{3}$")] = "USD"
    """Currency of all prices in this file, as three capital letters."""


NoticeShape = Literal["auto", "json", "ntfy", "slack", "discord"]
"""Form of a notice's request. "auto": the one that the URL's host expects."""


class NotifySection(Section, frozen=True, kw_only=True):
    """Where to post notices, and in which form."""

    url: Annotated[str, Meta(max_length=4096)] = ""
    """URL to post notices to, such as "https://ntfy.sh/my-topic"; empty: no notices. It is a secret."""
    url_env: Annotated[str, Meta(max_length=256)] = ""
    """Environment variable that holds the URL, in place of `url`."""
    shape: NoticeShape = "auto"
    """Form of a notice: "json", "ntfy", "slack", "discord"; "auto": what the URL's host expects."""


class EnergySection(Section, frozen=True, kw_only=True):
    """Energy that this machine draws from the mains. See [energy](../lend/limits-and-hours.md#energy)."""

    report: bool = True
    """Whether the ledger records the joules that the learner's machine uses, if they can be read."""
    watts: Annotated[float, Meta(gt=0, le=MAX_WATTS, examples=[400.0])] | None = None
    """Watts that the machine draws, if you know them; then no meter and no table is read."""


class WebSection(Section, frozen=True, kw_only=True):
    """Live page about this program for a browser. See [the live page](../operate/watching.md#the-live-page)."""

    listen: Annotated[str, Meta(max_length=MAX_ADDRESS_CHARS, examples=["0.0.0.0:7463"])] = "127.0.0.1"
    """Address of the live page, with or without a port; "" for no page."""
    hosts: Annotated[list[Annotated[str, Meta(max_length=MAX_NAME_CHARS)]], Meta(max_length=16)] = msgspec.field(
        default_factory=list
    )
    """Host names under which a proxy shows the page."""


class LearnerWebSection(WebSection, frozen=True, kw_only=True):
    """Live page about this run for a browser. See [the live page](../operate/watching.md#the-live-page)."""

    public: bool = False
    """Whether everybody who reaches the page may read it, without peers' machines and addresses."""
    show_ranks: bool = False
    """Whether each node is told its rank among all by admitted rollouts. It also learns how many nodes and rollouts
    there are."""
