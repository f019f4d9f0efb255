"""Describe how a rollout node can be reached, as it reports in Hello and heartbeats.

The description is a claim. The learner introduces peers to each other by it; no record is admitted or rejected because
of it, and nothing is paid. A learner that does not know the extension uses the addresses of Hello.

Invariants:

- A Reach is state, not an event: the last one is valid, and a heartbeat without one changes nothing.
- An encoded Reach fits the value of an extension (MAX_EXTENSION_BYTES).
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
"""Connections in one Reach: the learner, all neighbours of a full mesh, and some peers that connected without an
introduction."""


class ReachKind(OpenEnum):
    """How others reach the node: at an address that a peer has dialled, at a port that its router forwards, by hole
    punching, or not at all. In the last case only the node can dial."""

    DIRECTLY = "directly"
    MAPPED = "mapped"
    BY_PUNCHING = "by_punching"
    NOT = "not"
    UNKNOWN = "unknown"
    OTHER = "other"


class Way(OpenEnum):
    """How a connection came about: the node dialled, or it was dialled. It may have dialled back a peer that reached it
    through a relay, or both punched holes. RELAYED: their data still travels through a relay."""

    DIALLED = "dialled"
    WAS_DIALLED = "was_dialled"
    REVERSED = "reversed"
    PUNCHED = "punched"
    RELAYED = "relayed"
    OTHER = "other"


class Meeting(Row, frozen=True, array_like=True):
    """A peer that the node is connected to, and how the connection came about."""

    peer: PeerText
    way: Way


class Reach(Message, frozen=True, kw_only=True):
    """How a node can be reached, why it believes so, its addresses and relays, and the peers it is connected to."""

    kind: ReachKind
    why: Annotated[str, Meta(max_length=MAX_REACH_CHARS), Shown] = ""
    addresses: Annotated[list[Address], Meta(max_length=MAX_REACH_ADDRESSES)] = msgspec.field(default_factory=list)
    relays: Annotated[list[PeerText], Meta(max_length=MAX_RELAYS_TOLD)] = msgspec.field(default_factory=list)
    met: Annotated[list[Meeting], Meta(max_length=MAX_MEETINGS)] = msgspec.field(default_factory=list)


def reach_from(extensions: Mapping[str, bytes]) -> Reach | None:
    """Return the Reach in a message's extensions; None if there is none, or none that can be read."""
    raw = extensions.get(REACH)
    if raw is None:
        return None
    try:
        told: Reach = decode(Reach, raw, MAX_EXTENSION_BYTES)
    except PeerError:
        return None
    return told
