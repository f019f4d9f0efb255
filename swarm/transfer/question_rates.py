"""How often a peer may ask: whoever asks more often is answered no faster, since the next is not read meanwhile."""

from __future__ import annotations

import trio

from protocol.core.ids import PeerId
from swarm.transport.event_rate import Graded, Rate
from swarm.transport.framing import FrameStream
from swarm.transport.interface import Transport


class RateLimit:
    """Rates of one member, of one stranger, and of all strangers together; `budget` is their name in refusals."""

    def __init__(self, transport: Transport, budget: str, member: Rate, stranger: Rate, strangers: Rate) -> None:
        self._transport = transport
        self._budget = budget
        self._rates = Graded[PeerId](member=member, stranger=stranger, strangers=strangers)

    def admits(self, peer: PeerId) -> bool:
        """Count what was read from `peer` if that may be answered at once; else count nothing, and return False."""
        return self._rates.admit(peer, trio.current_time(), is_member=self._transport.is_trusted(peer))

    async def keep_to(self, frames: FrameStream) -> None:
        """Count what was read from `frames`, and wait before it is answered if its peer asks too often."""
        peer = frames.stream.remote
        wait_s = self._rates.charge(peer, trio.current_time(), is_member=self._transport.is_trusted(peer))
        if wait_s > 0:
            self._transport.note_refusal(self._budget, peer)
            await trio.sleep(wait_s)
