"""Measure the offset between this machine's clock and the learner's, from the shortest of a few round trips.

The learner sends its clock with the terms for newcomers. It read that clock at some moment within the round trip, so
half of the round trip bounds the error (Cristian, 1989).
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
"""Questions on one stream. The first also waits for the stream to open. Other traffic on the connection seldom delays
all of them.
"""

ANSWERS_S = 5.0

NO_CLOCK = "the learner runs an older volery, which does not report its clock"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One answer, in milliseconds: when we asked and when it came, by our clock, and the learner's clock in it."""

    asked_ms: float
    came_ms: float
    theirs_ms: float


async def compare_clocks(transport: Transport, learner: PeerId, token: str) -> ClockOffset | NotKnown:
    """Ask the learner for its clock, TIMES times."""
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
    """Return one answer; None if it has no clock. Raises StreamBroken, PeerError."""
    asked_ms, began_s = Clock.now_ms(), trio.current_time()
    await frames.send(exchange.AskTerms(token=token))
    answer: exchange.Answer | None = await frames.receive(exchange.Answer)
    took_ms = 1000 * (trio.current_time() - began_s)
    if not isinstance(answer, exchange.TellTerms) or not answer.now_ms:
        return None
    return Reading(asked_ms=asked_ms, came_ms=asked_ms + took_ms, theirs_ms=answer.now_ms)


def offset_of(readings: Sequence[Reading]) -> ClockOffset:
    """Return the offset by the reading with the shortest round trip."""
    best = min(readings, key=lambda one: one.came_ms - one.asked_ms)
    took_s = (best.came_ms - best.asked_ms) / 1000
    ahead_s = ((best.asked_ms + best.came_ms) / 2 - best.theirs_ms) / 1000
    return ClockOffset(ahead_s=ahead_s, error_s=took_s / 2, round_trip_s=took_s)
