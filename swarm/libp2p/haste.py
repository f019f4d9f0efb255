"""Decide which peers get our first message together with the security proposal, and remember those that rejected it.

Sending both at once saves a round trip. A peer that speaks TLS accepts it. A peer that speaks only noise answers "na",
takes our message for more proposals, and closes the connection. Then we connect once more, and remember the peer if
that succeeded.

Invariants:

- A remembered peer is not sent both at once, as long as it is among the last MAX_REMEMBERED.
- One call makes at most two attempts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from protocol.core.ids import PeerId
from swarm.libp2p.security import NotTakenAtOnce

MAX_REMEMBERED = 1024
"""Peers remembered: as many as a node has connections. A forgotten peer costs one more connection."""

T = TypeVar("T")


class Haste:
    """Remember the peers that cannot take a proposal and the first message at once."""

    def __init__(self) -> None:
        self._remembered: dict[PeerId, None] = {}

    def suits(self, peer: PeerId) -> bool:
        """Return whether sending the proposal and the first message at once may save a round trip."""
        return peer not in self._remembered

    async def attempt(self, peer: PeerId, connect: Callable[[bool], Awaitable[T]]) -> T:
        """Connect to a peer; `connect` gets True to send both at once. Raises what its last call raises."""
        if self.suits(peer):
            with suppress(NotTakenAtOnce):
                return await connect(True)
        connected = await connect(False)
        self._remember(peer)
        return connected

    def _remember(self, peer: PeerId) -> None:
        self._remembered.pop(peer, None)
        self._remembered[peer] = None
        if len(self._remembered) > MAX_REMEMBERED:
            self._remembered.pop(next(iter(self._remembered)))
