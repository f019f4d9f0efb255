"""Handshakes that others begin, one after the other: two thousand at once leave this process time for the rest.

A handshake, and the greeting that follows, cost a core about ten milliseconds in all, in a dozen pieces. The scheduler
runs whatever can run before it begins anew, so as many handshakes as come at once would lie between any two steps of
everything else. Here one begins in each pass of the scheduler: a pass then takes about as long as one handshake,
however many wait. Lines with long round trips lose nothing, since while they wait passes are short.

Invariants:
- At most one handshake begins in a pass.
- Awaited, known and unknown ones wait apart, each in the order in which they came, and take turns.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from swarm.libp2p.fair_slots import Claim

LOOK_AGAIN_S = 0.02
"""How often is looked whether a place is free: a join takes about as long."""


class HandshakeTurns:
    """See the module's paragraph."""

    def __init__(self) -> None:
        self._queues = {claim: trio.StrictFIFOLock() for claim in Claim}
        self._turn = trio.StrictFIFOLock()

    async def wait(self, may_begin: Callable[[], bool], claim: Claim) -> None:
        """Return when a handshake may begin: it is its turn, and there is a place for it."""
        async with self._queues[claim]:
            while not may_begin():
                await trio.sleep(LOOK_AGAIN_S)
            async with self._turn:
                await trio.lowlevel.checkpoint()
