"""Start inbound handshakes one after the other, so that two thousand at once leave this process time for the rest.

A handshake and the greeting that follows take about ten milliseconds of a core in all, in a dozen pieces. The scheduler
runs everything that is ready before it begins its next pass. So all handshakes that arrive at once would run between
any two steps of everything else. Here one begins in each pass: a pass then takes about as long as one handshake,
however many wait. Connections with long round trips lose nothing, since passes are short while they wait.

Invariants:

- At most one handshake begins in a pass.
- Awaited, known and unknown origins wait in separate queues, in order of arrival, and the queues take turns.
- A handshake that waits for others of its own origin, or whose origin has changed its class, holds up nobody.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

import trio

from swarm.libp2p.fair_slots import Claim

LOOK_AGAIN_S = 0.02
"""Seconds between two checks whether a place is free: about as long as a join takes."""


class Places(Protocol):
    """Which origins have a place (`swarm.libp2p.connection_gate.Door`)."""

    @abstractmethod
    def claim_of(self, origin: str) -> Claim:
        """Return how well an origin is known."""

    @abstractmethod
    def has_share(self, origin: str, now: float) -> bool:
        """Return whether few enough connections of this origin are joining."""

    @abstractmethod
    def has_place(self, origin: str, now: float) -> bool:
        """Return whether there is a place for one more connection of this origin."""


class HandshakeTurns:
    """Queue inbound handshakes by how well their origin is known, and start one in each pass."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._queues = {claim: trio.StrictFIFOLock() for claim in Claim}
        self._turn = trio.StrictFIFOLock()

    async def wait(self, origin: str) -> None:
        """Return when a handshake of `origin` may begin: it is its turn, and there is a place for it.

        The place stays free until the caller waits for something.
        """
        while True:
            while not self._places.has_share(origin, trio.current_time()):
                await trio.sleep(LOOK_AGAIN_S)
            claim = self._places.claim_of(origin)
            async with self._queues[claim]:
                while self._may_wait(origin, claim) and not self._places.has_place(origin, trio.current_time()):
                    await trio.sleep(LOOK_AGAIN_S)
                async with self._turn:
                    await trio.lowlevel.checkpoint()
                if self._may_wait(origin, claim) and self._places.has_place(origin, trio.current_time()):
                    return

    def _may_wait(self, origin: str, claim: Claim) -> bool:
        """Return whether the handshake is in the right queue."""
        return self._places.claim_of(origin) is claim and self._places.has_share(origin, trio.current_time())
