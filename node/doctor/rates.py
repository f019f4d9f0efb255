"""How fast bytes travel between the learner and this machine, measured by what it takes from anybody who asks.

From the learner: chunks of the newest version, which it would give to any node that begins. They are asked for by name
alone, so the learner's plan of whom it gives what first takes no notice. To the learner: questions that it answers
anyway, filled up with extensions that it does not know and so passes over; each answer says that a question has
arrived. Both end after seconds and a few MiB, well within what the learner gives and takes of strangers.

Invariants:
- At most DOWN_BYTES and one chunk are asked for, and at most UP_QUESTIONS sent; each way ends within its time.
- Nothing is kept of what comes.
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
"""For chunks: at 64 Mbit/s both end at the same time. A version of a small model is all there is."""

UP_S = 4.0
UP_QUESTIONS, UP_STREAMS = 32, 4
"""Questions of PADDED_BYTES, side by side on so many streams: 1.9 MiB. The learner answers fifty of a stranger at
once, and then five a second; with those asked before there is room."""

PADDING, PADDINGS = "volery.padding", 15
PADDED_BYTES = PADDINGS * MAX_EXTENSION_BYTES
"""Of one question: a request has at most 64 KiB, and 16 extensions."""

IN_FLIGHT = 3
"""Chunks asked for at once: all strangers together have four."""

COARSE_BYTES = 512 * KIB
"""Less than that is over before TCP has found out how fast the line is."""

STARTING = 0.3
"""Of the time, what TCP takes to find out how fast the line is."""

SHORTEST_S = 0.001
"""A faster transfer than any line's is taken to have lasted so long."""

LOOK_S = 0.02


async def measure_download(transport: Transport, learner: PeerId, newest: SignedManifest | None) -> Rate | NotKnown:
    """Fetch chunks of the newest version, and throw them away."""
    if newest is None:
        return NotKnown(why="there is no version yet whose bytes could be fetched")
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
        return NotKnown(why=f"the learner, busy with its members, gave nothing within {DOWN_S:.0f} s")
    return steady_rate(fetch.began_s, fetch.came)


def some_chunks(chunks: Sequence[ChunkRef]) -> list[ChunkRef]:
    """Chunks of a version to fetch, the largest first, DOWN_BYTES of them and perhaps a part of one."""
    found, total = [], 0
    for chunk in sorted(dict.fromkeys(chunks), key=lambda one: one.size, reverse=True):
        if total >= DOWN_BYTES:
            break
        found.append(chunk)
        total += chunk.size
    return found


def steady_rate(began_s: float, came: Sequence[tuple[float, int]]) -> Rate:
    """The rate of what `came`, as times and how many bytes were here by then; without what came while TCP found out how
    fast the line is, if enough is left."""
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
    """Chunks on their way, and when how many bytes of them were here."""

    waiting: list[ChunkRef]
    came: list[tuple[float, int]] = field(default_factory=list)
    """When, and how many bytes there were by then."""
    began_s: float = field(default_factory=trio.current_time)

    async def run(self, frames: FrameStream) -> None:
        """Ask for all that waits, IN_FLIGHT at a time."""
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
        """Look how many bytes have come, until cancelled."""
        while True:
            self.look(frames)
            await trio.sleep(LOOK_S)

    def look(self, frames: FrameStream) -> None:
        if frames.received_bytes > (self.came[-1][1] if self.came else 0):
            self.came.append((trio.current_time(), frames.received_bytes))


async def measure_upload(transport: Transport, learner: PeerId, round_trip_s: float) -> Rate | NotKnown:
    """Send long questions, and look when they were answered. `round_trip_s` is what a short one takes."""
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
        return NotKnown(why=f"less than {PADDED_BYTES // KIB} KiB went through within {UP_S:.0f} s")
    return rate_of(asked.answered * PADDED_BYTES, asked.last_s - asked.began_s - round_trip_s)


def padded_question() -> exchange.AskNewest:
    """A question that is as long as one may be."""
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
