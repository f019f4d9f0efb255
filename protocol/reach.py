"""How a rollout node is reached, as it tells the learner in Hello and heartbeats.

A claim, like all that a node says of itself: the learner introduces by it, and nothing is admitted, refused or paid by
it. Whoever does not know the extension goes by the addresses of Hello.

Invariants:
- It is state, not an event: what is told last holds, and a heartbeat without it changes nothing.
- Encoded, it fits the value of an extension (MAX_EXTENSION_BYTES).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.core.codec import Address, Message, OpenEnum, PeerText, Row, Shown, decode
from protocol.core.errors import PeerError
from protocol.core.limits import MAX_EXTENSION_BYTES

REACH = "volery.reach"
"""The extension of Hello and of Heartbeat that carries a Reach."""

MAX_REACH_CHARS = 120
MAX_REACH_ADDRESSES = 4
MAX_RELAYS_TOLD = 3
MAX_MEETINGS = 28
"""The learner, all neighbours of a full mesh, and some that came without having been introduced."""


class ReachKind(OpenEnum):
    """How others reach the node: at an address that one of them dialled, at a port that its router passes on, by
    knocking at the same time as it does, or not at all: then it reaches others."""

    DIRECTLY = "directly"
    MAPPED = "mapped"
    BY_PUNCHING = "by_punching"
    NOT = "not"
    UNKNOWN = "unknown"
    OTHER = "other"


class Way(OpenEnum):
    """How two peers came together: the node dialled, or was dialled; it dialled back whom a relay had brought; both
    knocked; or what they say still travels through a relay."""

    DIALLED = "dialled"
    WAS_DIALLED = "was_dialled"
    REVERSED = "reversed"
    PUNCHED = "punched"
    RELAYED = "relayed"
    OTHER = "other"


class Meeting(Row, frozen=True, array_like=True):
    """A peer that the node is connected to, and how that came about."""

    peer: PeerText
    way: Way


class Reach(Message, frozen=True, kw_only=True):
    """How a node is reached, why that is believed, at which addresses, through which relays; and whom it has met."""

    kind: ReachKind
    why: Annotated[str, Meta(max_length=MAX_REACH_CHARS), Shown] = ""
    addresses: Annotated[list[Address], Meta(max_length=MAX_REACH_ADDRESSES)] = msgspec.field(default_factory=list)
    relays: Annotated[list[PeerText], Meta(max_length=MAX_RELAYS_TOLD)] = msgspec.field(default_factory=list)
    met: Annotated[list[Meeting], Meta(max_length=MAX_MEETINGS)] = msgspec.field(default_factory=list)


def reach_told(extensions: Mapping[str, bytes]) -> Reach | None:
    """What a message's extensions say; None where it says nothing of it, or nothing that can be read."""
    raw = extensions.get(REACH)
    if raw is None:
        return None
    try:
        told: Reach = decode(Reach, raw, MAX_EXTENSION_BYTES)
    except PeerError:
        return None
    return told
