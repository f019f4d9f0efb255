"""How far this machine's clock is from the learner's: asked a few times, of which the shortest round trip counts.

The learner tells its clock among the terms for newcomers. When it read it lies somewhere within the round trip, so half
of that is the bound of the error (Cristian, 1989).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio

from node.doctor.findings import ClockOffset, NotKnown
from node.runtime.events import Clock
from protocol.core.errors import PeerError
from protocol.core.ids import PeerId
from protocol.versions import exchange
from swarm.transport.interface import StreamBroken, StreamRefused, Transport
from swarm.versions.manifest_search import ask

TIMES = 4
"""Questions: a line that others use as well seldom delays all of them."""

ANSWER_S = 4.0

NO_CLOCK = "the learner, an older volery, does not tell its clock"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One answer: when it was asked and came, by our clock, and what the learner's said. Milliseconds."""

    asked_ms: float
    came_ms: float
    theirs_ms: float


async def compare_clocks(transport: Transport, learner: PeerId, token: str) -> ClockOffset | NotKnown:
    """Ask the learner for its clock, some TIMES."""
    readings: list[Reading] = []
    try:
        for _ in range(TIMES):
            asked_ms, began_s = Clock.now_ms(), trio.current_time()
            answer = await ask(transport, learner, exchange.AskTerms(token=token), timeout_s=ANSWER_S)
            if not isinstance(answer, exchange.TellTerms) or not answer.now_ms:
                return NotKnown(why=NO_CLOCK)
            took_ms = 1000 * (trio.current_time() - began_s)
            readings.append(Reading(asked_ms=asked_ms, came_ms=asked_ms + took_ms, theirs_ms=answer.now_ms))
    except (StreamRefused, StreamBroken, trio.TooSlowError, PeerError) as error:
        if not readings:
            return NotKnown(why=str(error) or "the learner did not answer in time")
    return offset_of(readings)


def offset_of(readings: Sequence[Reading]) -> ClockOffset:
    """The offset by the reading whose round trip was the shortest."""
    best = min(readings, key=lambda one: one.came_ms - one.asked_ms)
    took_s = (best.came_ms - best.asked_ms) / 1000
    ahead_s = ((best.asked_ms + best.came_ms) / 2 - best.theirs_ms) / 1000
    return ClockOffset(ahead_s=ahead_s, error_s=took_s / 2, round_trip_s=took_s)
