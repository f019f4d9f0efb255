"""Distinguish our own errors from those of a peer.

A `LocalProtocolError` is our own mistake and ends in a traceback. A `PeerError` is the peer's mistake. It carries a
`Fault`, is caught where that peer is served, and becomes an observation about the peer. Ordinary outcomes (stale,
duplicate, refused, busy) are values, never exceptions. The distinction follows h11 (`h11._util`).
"""

from __future__ import annotations

from enum import Enum

from protocol.core.limits import MAX_DETAIL_CHARS
from protocol.core.visible import one_line


class Fault(Enum):
    """Kinds of mistakes of a peer, coarse enough to count and fine enough to explain."""

    OVERSIZED = "oversized"
    MALFORMED = "malformed"
    BAD_SIGNATURE = "bad_signature"
    WRONG_SWARM = "wrong_swarm"
    WRONG_KIND = "wrong_kind"
    UNAUTHORISED = "unauthorised"
    EQUIVOCATION = "equivocation"
    CORRUPT_CHUNK = "corrupt_chunk"
    BROKEN_PROMISE = "broken_promise"
    INCOMPATIBLE = "incompatible"


class ProtocolError(Exception):
    """Base of both errors. Catch one of the subclasses instead."""


class LocalProtocolError(ProtocolError):
    """We tried to send something that the protocol does not allow."""


class PeerError(ProtocolError):
    """A peer sent something that the protocol does not allow.

    Args:
        fault: kind of the mistake.
        detail: one sentence with the field or value concerned. It may quote the peer, so it becomes one harmless line.
    """

    def __init__(self, fault: Fault, detail: str) -> None:
        self.fault = fault
        self.detail = one_line(detail, MAX_DETAIL_CHARS)
        super().__init__(f"{fault.value}: {self.detail}")
