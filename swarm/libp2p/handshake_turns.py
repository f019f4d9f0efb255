"""Handshakes that others begin, one after the other: two thousand at once leave this process time for the rest.

A handshake, and the greeting that follows, cost a core about ten milliseconds in all, in a dozen pieces. The scheduler
runs whatever can run before it begins anew, so as many handshakes as come at once would lie between any two steps of
everything else. Here one begins in each pass of the scheduler: a pass then takes about as long as one handshake,
however many wait. Lines with long round trips lose nothing, since while they wait passes are short.

Invariants:
- At most one handshake begins in a pass.
- Awaited, known and unknown ones wait apart, each in the order in which they came, and take turns.
- Whoever waits for others of its own origin, or is of another kind by now, keeps nobody waiting.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

import trio

from swarm.libp2p.fair_slots import Claim

LOOK_AGAIN_S = 0.02
"""How often is looked whether a place is free: a join takes about as long."""


class Places(Protocol):
    """Who may come in (`swarm.libp2p.connection_gate.Door`)."""

    @abstractmethod
    def claim_of(self, origin: str) -> Claim:
        """What speaks for a connection from there."""

    @abstractmethod
    def has_share(self, origin: str, now: float) -> bool:
        """Whether few enough of this origin are on their way in."""

    @abstractmethod
    def has_place(self, origin: str, now: float) -> bool:
        """Whether there is a place for one more of this origin."""


class HandshakeTurns:
    """See the module's paragraph."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._queues = {claim: trio.StrictFIFOLock() for claim in Claim}
        self._turn = trio.StrictFIFOLock()

    async def wait(self, origin: str) -> None:
        """Return when a handshake of `origin` may begin: it is its turn, and there is a place for it. There is one for
        as long as the caller does not wait."""
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
        """Whether it stands in the right queue."""
        return self._places.claim_of(origin) is claim and self._places.has_share(origin, trio.current_time())
