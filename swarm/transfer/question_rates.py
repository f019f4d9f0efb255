"""Limit how often a peer may ask: a peer that asks too often is not read meanwhile, and so is answered no faster."""

from __future__ import annotations

import trio

from protocol.core.ids import PeerId
from swarm.transport.event_rate import Graded, Rate
from swarm.transport.framing import FrameStream
from swarm.transport.interface import Transport


class RateLimit:
    """Hold the rates of one member, one stranger, and all strangers together; `budget` names them in refusals."""

    def __init__(self, transport: Transport, budget: str, member: Rate, stranger: Rate, strangers: Rate) -> None:
        self._transport = transport
        self._budget = budget
        self._rates = Graded[PeerId](member=member, stranger=stranger, strangers=strangers)

    def admits(self, peer: PeerId) -> bool:
        """Count a message from `peer` if it may be answered at once; else count nothing, and return False."""
        return self._rates.admit(peer, trio.current_time(), is_member=self._transport.is_trusted(peer))

    async def keep_to(self, frames: FrameStream) -> None:
        """Count a message from `frames`, and wait before it is answered if its peer asks too often."""
        peer = frames.stream.remote
        wait_s = self._rates.charge(peer, trio.current_time(), is_member=self._transport.is_trusted(peer))
        if wait_s > 0:
            self._transport.note_refusal(self._budget, peer)
            await trio.sleep(wait_s)
