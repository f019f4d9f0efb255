"""Peers to whom security is proposed at once, with our first message behind it, and those who did not take that.

That saves a round trip. A peer that speaks TLS takes it. One that speaks noise alone answers "na", reads our message
for more proposals, and hangs up; so it is connected to once more, and remembered where that helped.

Invariants:
- A peer that is remembered is not tried at once, as long as it is among the last MAX_PATIENT.
- No more than two attempts are made in one go.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

from protocol.core.ids import PeerId
from swarm.libp2p.security import NotTakenAtOnce

MAX_PATIENT = 1024
"""Peers remembered: as many as a node has connections. One that was forgotten costs a connection more."""

T = TypeVar("T")


class Haste:
    """See the module's paragraph."""

    def __init__(self) -> None:
        self._patient: dict[PeerId, None] = {}

    def suits(self, peer: PeerId) -> bool:
        """Whether a proposal at once may save a round trip."""
        return peer not in self._patient

    async def attempt(self, peer: PeerId, connect: Callable[[bool], Awaitable[T]]) -> T:
        """Connect to a peer; `connect` is told whether to propose at once. Raises what its last call raises."""
        if self.suits(peer):
            with suppress(NotTakenAtOnce):
                return await connect(True)
        connected = await connect(False)
        self._remember(peer)
        return connected

    def _remember(self, peer: PeerId) -> None:
        self._patient.pop(peer, None)
        self._patient[peer] = None
        if len(self._patient) > MAX_PATIENT:
            self._patient.pop(next(iter(self._patient)))
