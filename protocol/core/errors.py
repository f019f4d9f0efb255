"""Whose fault it is.

A `LocalProtocolError` is our own mistake: somebody gets a traceback. A `PeerError` is the other side's: it carries a
`Fault`, is caught at the edge of that peer, and becomes an observation about it. Ordinary outcomes (stale, duplicate,
refused, busy) are values and never exceptions. The split is h11's (`h11._util`).
"""

from __future__ import annotations

from enum import Enum

from protocol.core.limits import MAX_DETAIL_CHARS
from protocol.core.visible import one_line


class Fault(Enum):
    """What a peer did wrong, coarse enough to count and fine enough to explain."""

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
    """Base of both; catch one of the subclasses instead."""


class LocalProtocolError(ProtocolError):
    """We tried to say something that the protocol does not allow."""


class PeerError(ProtocolError):
    """A peer said something that the protocol does not allow.

    Args:
        fault: what kind of mistake it was.
        detail: one sentence with the field or value concerned. It may quote the peer, so it becomes one harmless line.
    """

    def __init__(self, fault: Fault, detail: str) -> None:
        self.fault = fault
        self.detail = one_line(detail, MAX_DETAIL_CHARS)
        super().__init__(f"{fault.value}: {self.detail}")
