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
from swarm.transport.framing import FrameStream, open_frames
from swarm.transport.interface import StreamBroken, StreamRefused, Transport

TIMES = 5
"""Questions on one stream, of which the first waits for its opening as well. A line that others use seldom delays all.
"""

ANSWERS_S = 5.0

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
        with trio.fail_after(ANSWERS_S):
            stream = await transport.open_stream(learner, exchange.ASK)
            async with open_frames(stream, exchange.MAX_ANSWER_BYTES) as frames:
                for _ in range(TIMES):
                    if (reading := await _read(frames, token)) is None:
                        return NotKnown(why=NO_CLOCK)
                    readings.append(reading)
    except (StreamRefused, StreamBroken, trio.TooSlowError, PeerError) as error:
        if not readings:
            return NotKnown(why=str(error) or "the learner did not answer in time")
    return offset_of(readings)


async def _read(frames: FrameStream, token: str) -> Reading | None:
    """One answer; None where it has no clock. Raises StreamBroken, PeerError."""
    asked_ms, began_s = Clock.now_ms(), trio.current_time()
    await frames.send(exchange.AskTerms(token=token))
    answer: exchange.Answer | None = await frames.receive(exchange.Answer)
    took_ms = 1000 * (trio.current_time() - began_s)
    if not isinstance(answer, exchange.TellTerms) or not answer.now_ms:
        return None
    return Reading(asked_ms=asked_ms, came_ms=asked_ms + took_ms, theirs_ms=answer.now_ms)


def offset_of(readings: Sequence[Reading]) -> ClockOffset:
    """The offset by the reading whose round trip was the shortest."""
    best = min(readings, key=lambda one: one.came_ms - one.asked_ms)
    took_s = (best.came_ms - best.asked_ms) / 1000
    ahead_s = ((best.asked_ms + best.came_ms) / 2 - best.theirs_ms) / 1000
    return ClockOffset(ahead_s=ahead_s, error_s=took_s / 2, round_trip_s=took_s)
