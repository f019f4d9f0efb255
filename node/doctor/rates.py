"""Measure how fast bytes travel between the learner and this machine, with requests that any stranger may make.

Download: chunks of the newest version, which the learner would give to any node that begins. They are requested by name
alone, so the learner's plan of which node gets what first does not change. Upload: questions that the learner answers
anyway, padded with extensions that it does not know and therefore ignores. Each answer shows that a question has
arrived. Both end after seconds and a few MiB, well within the learner's limits for strangers.

Invariants:

- At most DOWN_BYTES and one chunk are requested, and at most UP_QUESTIONS sent. Each direction ends within its time.
- Nothing that arrives is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from node.doctor.findings import NotKnown, Rate
from protocol.core.errors import PeerError
from protocol.core.ids import PeerId
from protocol.core.limits import KIB, MAX_EXTENSION_BYTES, MIB
from protocol.versions import exchange
from protocol.versions.manifest import ChunkRef, SignedManifest
from swarm.transport.error_groups import first_cause
from swarm.transport.framing import FrameStream, open_frames
from swarm.transport.interface import StreamBroken, StreamRefused, Transport

DOWN_S, DOWN_BYTES = 4.0, 32 * MIB
"""Seconds and bytes for the download: at 64 Mbit/s both end at the same time. A small model's version may be less."""

UP_S = 4.0
UP_QUESTIONS, UP_STREAMS = 32, 4
"""Questions of PADDED_BYTES, on that many streams at once: 1.9 MiB. The learner answers fifty questions of a stranger
at once, and then five a second, so there is room for these and the earlier ones."""

PADDING, PADDINGS = "volery.padding", 15
PADDED_BYTES = PADDINGS * MAX_EXTENSION_BYTES
"""Padding of one question: a request has at most 64 KiB, and 16 extensions."""

IN_FLIGHT = 3
"""Chunks that are requested at once: all strangers together have four."""

COARSE_BYTES = 512 * KIB
"""Fewer bytes arrive before TCP has found out how fast the connection is."""

STARTING = 0.3
"""Fraction of the time that TCP takes to find out how fast the connection is."""

SHORTEST_S = 0.001
"""Seconds that any transfer is taken to have lasted at least. A shorter time would mean a speed that no line has."""

LOOK_S = 0.02


async def measure_download(transport: Transport, learner: PeerId, newest: SignedManifest | None) -> Rate | NotKnown:
    """Fetch chunks of the newest version, discard them, and return the rate."""
    if newest is None:
        return NotKnown(why="the learner has not published a version yet, so there is nothing to fetch")
    chunks = some_chunks(newest.manifest.chunks)
    fetch = _Fetch(waiting=list(chunks))
    try:
        with trio.move_on_after(DOWN_S), first_cause():
            stream = await transport.open_stream(learner, exchange.CHUNKS)
            async with open_frames(stream, exchange.MAX_CHUNK_FRAME_BYTES) as frames, trio.open_nursery() as nursery:
                nursery.start_soon(fetch.watch, frames)
                await fetch.run(frames)
                nursery.cancel_scope.cancel()
    except (StreamRefused, StreamBroken, PeerError) as error:
        if not fetch.came:
            return NotKnown(why=str(error))
    if not fetch.came:
        return NotKnown(why=f"the learner, busy with its members, sent nothing within {DOWN_S:.0f} s")
    return steady_rate(fetch.began_s, fetch.came)


def some_chunks(chunks: Sequence[ChunkRef]) -> list[ChunkRef]:
    """Return chunks of a version to fetch, the largest first: DOWN_BYTES of them, and perhaps a part of one chunk."""
    found, total = [], 0
    for chunk in sorted(dict.fromkeys(chunks), key=lambda one: one.size, reverse=True):
        if total >= DOWN_BYTES:
            break
        found.append(chunk)
        total += chunk.size
    return found


def steady_rate(began_s: float, came: Sequence[tuple[float, int]]) -> Rate:
    """Return the rate of `came`, a list of times with the bytes received by then. Bytes that came while TCP found out
    how fast the connection is do not count, if enough others are left."""
    end_s, total = came[-1]
    ready_s = began_s + STARTING * (end_s - began_s)
    from_s, before = next(((at_s, size) for at_s, size in came if at_s >= ready_s), (began_s, 0))
    if total - before >= COARSE_BYTES:
        return rate_of(total - before, end_s - from_s)
    return rate_of(total, end_s - began_s)


def rate_of(size_bytes: int, seconds: float) -> Rate:
    return Rate(size_bytes=size_bytes, seconds=max(SHORTEST_S, seconds), is_coarse=size_bytes < COARSE_BYTES)


@dataclass(kw_only=True)
class _Fetch:
    """Chunks that are being fetched, and how many of their bytes had come when."""

    waiting: list[ChunkRef]
    came: list[tuple[float, int]] = field(default_factory=list)
    """Pairs of a time and the bytes received by then."""
    began_s: float = field(default_factory=trio.current_time)

    async def run(self, frames: FrameStream) -> None:
        """Request all waiting chunks, IN_FLIGHT at a time."""
        self.began_s, out = trio.current_time(), 0
        while self.waiting or out:
            while self.waiting and out < IN_FLIGHT:
                await frames.send(exchange.Request(cid=self.waiting[0].name))
                self.waiting.pop(0)
                out += 1
            answer: exchange.ChunkAnswer | None = await frames.receive(exchange.ChunkAnswer)
            self.look(frames)
            if answer is None:
                return
            out -= 1
            if isinstance(answer, exchange.Busy):
                await trio.sleep(answer.retry_after_ms / 1000)

    async def watch(self, frames: FrameStream) -> None:
        """Record how many bytes have come, until cancelled."""
        while True:
            self.look(frames)
            await trio.sleep(LOOK_S)

    def look(self, frames: FrameStream) -> None:
        if frames.received_bytes > (self.came[-1][1] if self.came else 0):
            self.came.append((trio.current_time(), frames.received_bytes))


async def measure_upload(transport: Transport, learner: PeerId, round_trip_s: float) -> Rate | NotKnown:
    """Send long questions, and measure when they were answered. `round_trip_s`: seconds that a short question takes."""
    asked = _Asked()
    try:
        with trio.move_on_after(UP_S), first_cause():
            async with trio.open_nursery() as nursery:
                for _ in range(UP_STREAMS):
                    nursery.start_soon(asked.ask, transport, learner, UP_QUESTIONS // UP_STREAMS)
    except (StreamRefused, StreamBroken, PeerError) as error:
        if not asked.answered:
            return NotKnown(why=str(error))
    if not asked.answered:
        return NotKnown(why=f"less than {PADDED_BYTES // KIB} KiB arrived within {UP_S:.0f} s")
    return rate_of(asked.answered * PADDED_BYTES, asked.last_s - asked.began_s - round_trip_s)


def padded_question() -> exchange.AskNewest:
    """Return a question of the greatest allowed length."""
    return exchange.AskNewest(ext={f"{PADDING}.{number}": bytes(MAX_EXTENSION_BYTES) for number in range(PADDINGS)})


@dataclass(kw_only=True)
class _Asked:
    """Long questions, and when the last of them was answered."""

    answered: int = 0
    began_s: float = field(default_factory=trio.current_time)
    last_s: float = 0.0

    async def ask(self, transport: Transport, learner: PeerId, times: int) -> None:
        question = padded_question()
        stream = await transport.open_stream(learner, exchange.ASK)
        async with open_frames(stream, exchange.MAX_ANSWER_BYTES) as frames, trio.open_nursery() as nursery:

            async def send() -> None:
                for _ in range(times):
                    await frames.send(question)

            nursery.start_soon(send)
            for _ in range(times):
                if await frames.receive(exchange.Answer) is None:
                    break
                self.answered += 1
                self.last_s = trio.current_time()
            nursery.cancel_scope.cancel()
