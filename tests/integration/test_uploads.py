"""Send chunks over real connections without a task: readers that stop, streams that break, openers that go."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from protocol.core.ids import Cid
from protocol.versions import exchange
from swarm.libp2p import open_libp2p
from swarm.store import ChunkStore
from swarm.transfer import chunk_server
from swarm.transfer.chunk_cache import RecentChunks
from swarm.transfer.chunk_server import ChunkServer
from swarm.transport.framing import FrameStream
from swarm.transport.interface import StreamBroken, Transport
from tests.support.store_fixture import chunk_data, small_swarm

pytestmark = pytest.mark.trio

SWARM = small_swarm()
CHUNK_BYTES = 1 << 20
"""Bytes of four windows of a stream that its reader does not read."""

FILES = {"model.bin.json": b"".join(bytes([number]) * CHUNK_BYTES for number in range(6))}
SIGNED = SWARM.publish(FILES, chunk_bytes=CHUNK_BYTES)
CIDS = [Cid(chunk.cid) for chunk in SIGNED.manifest.chunks]
TIMEOUT_S = 60.0


@dataclass
class Served:
    """A host that serves chunks which it has in memory, a client of it, and the client's end of a stream."""

    chunks: ChunkServer
    guest: Transport
    frames: FrameStream


@asynccontextmanager
async def served(root: Path) -> AsyncIterator[Served]:
    with ChunkStore.open(root, SWARM.authority) as store:
        store.begin(SIGNED)
        recent = RecentChunks()
        for index, cid in enumerate(CIDS):
            store.put(SIGNED.hash, index, chunk_data(SIGNED, FILES, index))
            recent.add(cid, chunk_data(SIGNED, FILES, index))
        async with (
            open_libp2p(bytes([1]) * 32, ["/ip4/127.0.0.1/tcp/0"]) as host,
            open_libp2p(bytes([2]) * 32, []) as guest,
        ):
            chunks = ChunkServer(transport=host, store=store, views={}, trouble=lambda text: None, recent=recent)
            host.handle(exchange.CHUNKS, lambda stream: chunks.serve(FrameStream(stream, 10_000)))
            host.trust(guest.peer_id)
            stream = await guest.open_stream(await guest.dial(host.addresses()), exchange.CHUNKS)
            with trio.fail_after(TIMEOUT_S):
                yield Served(chunks, guest, FrameStream(stream, exchange.MAX_CHUNK_FRAME_BYTES))


async def request(one: Served, *cids: Cid) -> None:
    await one.frames.send_together([exchange.Request(cid=cid) for cid in cids])


async def all_of(one: Served) -> int:
    """Return how many answers come until the end."""
    got = 0
    while await one.frames.receive_bytes() is not None:
        got += 1
    return got


async def until_sending(one: Served) -> None:
    while not one.chunks.is_busy:
        await trio.sleep(0.001)


async def test_chunks_and_other_answers_share_a_stream(tmp_path: Path) -> None:
    unknown = Cid(CIDS[0][:4] + bytes(32))
    async with served(tmp_path) as one:
        await request(one, *CIDS, unknown)
        answers = [await one.frames.receive(exchange.ChunkAnswer) for _ in range(7)]
        chunks = {answer.cid: answer.data for answer in answers if isinstance(answer, exchange.Chunk)}
        assert chunks == {cid: chunk_data(SIGNED, FILES, index) for index, cid in enumerate(CIDS)}
        assert exchange.Missing(cid=unknown) in answers
        (counts,) = one.chunks.served.values()
        assert (counts.chunks, counts.size_bytes) == (6, 6 * CHUNK_BYTES)
        assert not one.chunks.is_busy


async def test_a_reader_that_stops_is_cut_off_and_its_lane_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunk_server, "UPLOAD_TIMEOUT_S", 0.05)
    async with served(tmp_path) as one:
        await request(one, *CIDS[:3])
        await until_sending(one)
        while one.chunks.is_busy:
            one.chunks.tick()
            await trio.sleep(0.01)
        with pytest.raises(StreamBroken):
            await all_of(one)
        assert one.chunks.served == {}


async def test_who_breaks_its_stream_off_is_owed_nothing(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        await request(one, *CIDS[:3])
        await until_sending(one)
        await one.frames.stream.abort()
        while one.chunks.is_busy:
            await trio.sleep(0.001)
        assert one.chunks.served == {}


async def test_who_says_no_more_still_gets_what_it_is_owed(tmp_path: Path) -> None:
    async with served(tmp_path) as one:
        await request(one, *CIDS[:2])
        await one.frames.stream.send_eof()
        assert await all_of(one) == 2


async def test_who_keeps_an_answer_waiting_behind_a_chunk_is_cut_off_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that would notice is in the middle of sending the answer."""
    monkeypatch.setattr(chunk_server, "UPLOAD_TIMEOUT_S", 0.05)
    async with served(tmp_path) as one:
        await request(one, CIDS[0])
        await until_sending(one)
        await request(one, Cid(CIDS[0][:4] + bytes(32)))
        while one.chunks.is_busy:
            one.chunks.tick()
            await trio.sleep(0.01)
        with pytest.raises(StreamBroken):
            await all_of(one)


async def test_an_upload_that_was_given_up_is_not_over_a_second_time(tmp_path: Path) -> None:
    """Two streams of one peer: the break of one lets the other begin, whose first write takes the rest of both."""
    async with served(tmp_path) as one:
        peer = one.frames.stream.remote
        again = FrameStream(await one.guest.open_stream(peer, exchange.CHUNKS), exchange.MAX_CHUNK_FRAME_BYTES)
        await request(one, CIDS[0])
        await until_sending(one)
        await again.send(exchange.Request(cid=CIDS[1]))
        await one.frames.send_bytes(b"rubbish")
        assert isinstance(await again.receive(exchange.ChunkAnswer), exchange.Chunk)
        while one.chunks.is_busy:
            await trio.sleep(0.001)
