"""Distribution: one version from many peers, whatever those peers do."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from protocol.core.digest import cid_of
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.ids import PeerId, PolicyVersion
from protocol.core.limits import MAX_CHUNKS, MAX_REQUEST_BYTES
from protocol.versions import exchange
from protocol.versions.manifest import ChunkRef, FileEntry, Manifest, sign_manifest
from swarm.store import StoreFull, VersionUnknown
from swarm.testing.memory_transport import MemoryNetwork, MemoryTransport, Transfer
from swarm.transfer import upload_queue as uploads
from swarm.transfer.chunk_picker import FAILURE_PAUSE_S, MAX_FAILURES, TIMEOUT_S, WINDOW
from swarm.transfer.exchange import STARVED_S
from swarm.transfer.fetch import Starved
from swarm.transfer.link import FAULT_PAUSE_S, REFUSED_MOST_S
from swarm.transport.framing import FrameStream
from swarm.transport.interface import Stream, StreamBroken
from tests.support import swarm_fixture as swarming
from tests.support.store_fixture import chunk_data, model_files, small_model, small_swarm
from tests.support.swarm_fixture import SwarmNode, open_node, peer_of

inline_threads = pytest.fixture(autouse=True)(swarming.inline_threads)

SWARM = small_swarm()
FILES = small_model(1)
SIGNED = SWARM.publish(FILES)
CHUNKS = len(SIGNED.manifest.chunks)
BITMAP = SWARM and ((1 << CHUNKS) - 1).to_bytes((CHUNKS + 7) // 8, "little")
TOTAL = sum(chunk.size for chunk in SIGNED.manifest.chunks)
NEXT_FILES = small_model(2)
NEXT = SWARM.publish(NEXT_FILES, version=2)


async def slow(transfer: Transfer) -> bytes:
    await trio.sleep(0.05)
    return transfer.data


async def frozen(transfer: Transfer) -> bytes:
    if transfer.protocol == exchange.CHUNKS:
        await trio.sleep_forever()
    return transfer.data


async def corrupting(transfer: Transfer) -> bytes:
    """Flips the last bit of every chunk that comes by."""
    if transfer.protocol == exchange.CHUNKS and len(transfer.data) > 128:
        return transfer.data[:-1] + bytes([transfer.data[-1] ^ 1])
    return transfer.data


def is_whole(node: SwarmNode) -> bool:
    return node.store.is_complete(SIGNED.hash) and model_files(node.store.directory(SIGNED.hash)) == FILES


Serve = Callable[[FrameStream], Awaitable[None]]


@dataclass
class Scripted:
    """A peer that claims to hold everything, and does what a test says."""

    transport: MemoryTransport
    requests: list[bytes] = field(default_factory=list)
    controls: list[FrameStream] = field(default_factory=list)

    def handle(self, protocol: str, serve: Serve) -> None:
        async def handler(stream: Stream) -> None:
            await serve(FrameStream(stream, MAX_REQUEST_BYTES))

        self.transport.handle(protocol, handler)

    async def claim_once(self, frames: FrameStream) -> None:
        if (want := await frames.receive(exchange.Want)) is not None:
            await frames.send(exchange.Have(manifest=want.manifest, bitmap=BITMAP))

    async def claim(self, frames: FrameStream) -> None:
        self.controls.append(frames)
        while (want := await frames.receive(exchange.Want)) is not None:
            await frames.send(exchange.Have(manifest=want.manifest, bitmap=BITMAP))

    def answer(self, answer: Callable[[exchange.Request], exchange.ChunkAnswer]) -> None:
        async def serve(frames: FrameStream) -> None:
            while (request := await frames.receive(exchange.Request)) is not None:
                self.requests.append(request.cid)
                await frames.send(answer(request))

        self.handle(exchange.CHUNKS, serve)

    def keep_silent(self) -> None:
        async def serve(frames: FrameStream) -> None:
            while (request := await frames.receive(exchange.Request)) is not None:
                self.requests.append(request.cid)

        self.handle(exchange.CHUNKS, serve)


@asynccontextmanager
async def scripted(network: MemoryNetwork, name: str) -> AsyncIterator[Scripted]:
    async with network.node(name, peer_id=peer_of(name)) as transport:
        peer = Scripted(transport)
        peer.handle(exchange.EXCHANGE, peer.claim)
        peer.keep_silent()
        yield peer


def data_of(cid: bytes) -> bytes:
    index = next(i for i, chunk in enumerate(SIGNED.manifest.chunks) if chunk.cid == cid)
    return chunk_data(SIGNED, FILES, index)


# Honest peers.


async def test_an_answer_that_comes_as_it_is_given_up_is_nobodys_fault(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The last chunk has come from elsewhere, and in the same turn the answer to a second request arrives."""
    network = MemoryNetwork()
    async with scripted(network, "late") as late, open_node(network, SWARM, tmp_path, "a") as a:

        async def serve(frames: FrameStream) -> None:
            request = await frames.receive(exchange.Request)
            assert request is not None
            assert frames.post([exchange.Chunk(cid=request.cid, data=data_of(request.cid))])
            a.distribution._links[late.transport.peer_id].break_off()
            await trio.sleep_forever()

        late.handle(exchange.CHUNKS, serve)
        await a.transport.dial(late.transport.addresses())
        with trio.move_on_after(5.0):
            await a.fetch(SIGNED)
        assert a.faults == []


async def test_a_version_comes_from_all_who_hold_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with (
        open_node(network, SWARM, tmp_path, "a") as a,
        open_node(network, SWARM, tmp_path, "b") as b,
        open_node(network, SWARM, tmp_path, "c") as c,
    ):
        for source in (a, b):
            source.hold(SIGNED, FILES)
            network.set_fault(source.peer, c.peer, slow)
        await c.dial(a, b)
        by_peer = await c.fetch(SIGNED)
        assert is_whole(c)
        assert sum(by_peer.values()) == TOTAL == c.distribution.fetched_bytes, "nothing twice"
        assert min(by_peer[a.peer], by_peer[b.peer]) > TOTAL / 4
        assert c.faults == []


async def test_peers_that_hold_different_parts_make_a_whole(tmp_path: Path, autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with (
        open_node(network, SWARM, tmp_path, "a") as a,
        open_node(network, SWARM, tmp_path, "b") as b,
        open_node(network, SWARM, tmp_path, "c") as c,
    ):
        for start, source in enumerate((a, b)):
            source.store.begin(SIGNED)
            for index in range(start, CHUNKS, 2):
                source.store.put(SIGNED.hash, index, chunk_data(SIGNED, FILES, index))
        await c.dial(a, b)
        await c.fetch(SIGNED)
        assert is_whole(c)


async def test_chunks_are_relayed_while_the_relay_is_still_fetching(tmp_path: Path, autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with (
        open_node(network, SWARM, tmp_path, "a") as a,
        open_node(network, SWARM, tmp_path, "b") as b,
        open_node(network, SWARM, tmp_path, "c") as c,
    ):
        a.hold(SIGNED, FILES)
        network.set_fault(a.peer, b.peer, slow)
        await b.dial(a)
        await c.dial(b)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(c.fetch, SIGNED)
            await b.fetch(SIGNED)
            assert len(c.store.missing(SIGNED.hash)) < CHUNKS / 2, "b was complete a moment ago"
        assert is_whole(c)
        assert set(c.transport.connected_peers()) == {b.peer}


async def test_a_node_that_nobody_can_dial_fetches_and_serves(tmp_path: Path, autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with (
        open_node(network, SWARM, tmp_path, "a") as a,
        open_node(network, SWARM, tmp_path, "hidden", listens=False) as hidden,
        open_node(network, SWARM, tmp_path, "c") as c,
    ):
        a.hold(SIGNED, FILES)
        await hidden.dial(a, c)
        await hidden.fetch(SIGNED)
        assert is_whole(hidden)
        assert await c.fetch(SIGNED) == {hidden.peer: TOTAL}
        assert is_whole(c)


async def test_data_streams_are_kept_for_the_next_version(tmp_path: Path, autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    opened: list[str] = []

    async def count(transfer: Transfer) -> bytes:
        if transfer.data == transfer.protocol.encode():
            opened.append(transfer.protocol)
        return transfer.data

    async with open_node(network, SWARM, tmp_path, "a") as a, open_node(network, SWARM, tmp_path, "b") as b:
        network.set_fault(b.peer, a.peer, count)
        await b.dial(a)
        for signed, files in ((SIGNED, FILES), (NEXT, NEXT_FILES)):
            a.hold(signed, files)
            await b.fetch(signed)
        assert opened.count(exchange.EXCHANGE) == 1
        assert opened.count(exchange.CHUNKS) == 1


async def test_a_busy_peer_is_asked_again(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = MemoryNetwork()
    async with open_node(network, SWARM, tmp_path, "a") as a, open_node(network, SWARM, tmp_path, "b") as b:
        a.hold(SIGNED, FILES)
        await b.dial(a)
        async with trio.open_nursery() as nursery:
            with monkeypatch.context() as patch:
                patch.setattr(uploads, "MAX_WAITING", 0)
                nursery.start_soon(b.fetch, SIGNED)
                await trio.sleep(30)
                assert b.distribution.fetched_bytes == 0
        assert is_whole(b)
        assert b.faults == []


async def test_what_is_held_already_is_not_fetched(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_node(MemoryNetwork(), SWARM, tmp_path, "a") as a:
        a.hold(SIGNED, FILES)
        assert await a.fetch(SIGNED) == {}


async def test_every_chunk_is_remembered_with_who_gave_it(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Also over a fetch that failed, since what it brought stays; and no longer than for one version."""
    network = MemoryNetwork()
    async with (
        open_node(network, SWARM, tmp_path, "a") as a,
        open_node(network, SWARM, tmp_path, "b") as b,
        open_node(network, SWARM, tmp_path, "c") as c,
    ):
        a.store.begin(SIGNED)
        a.store.put(SIGNED.hash, 0, chunk_data(SIGNED, FILES, 0))
        await c.dial(a)
        with pytest.raises(Starved):
            await c.fetch(SIGNED)
        network.cut(a.peer, c.peer)
        b.hold(SIGNED, FILES)
        b.hold(NEXT, NEXT_FILES)
        await c.dial(b)
        fetched = await c.distribution.fetch(SIGNED)
        assert fetched.givers == {0: a.peer} | dict.fromkeys(range(1, CHUNKS), b.peer)
        assert fetched.by_peer == {b.peer: TOTAL - SIGNED.manifest.chunks[0].size}, (
            "only chunks of this fetch must count"
        )
        c.store.begin(NEXT)
        new = c.store.missing(NEXT.hash)
        assert (await c.distribution.fetch(NEXT)).givers == dict.fromkeys(new, b.peer)


# Peers that go.


def cut_after(network: MemoryNetwork, transfers: int) -> Callable[[Transfer], Awaitable[bytes]]:
    """A link that is cut when so many chunks have passed."""
    passed = 0

    async def hook(transfer: Transfer) -> bytes:
        nonlocal passed
        await trio.sleep(0.05)
        passed += transfer.protocol == exchange.CHUNKS
        if passed == transfers:
            network.cut(transfer.source, transfer.target)
        return transfer.data

    return hook


async def test_when_a_peer_vanishes_the_rest_comes_from_others(tmp_path: Path, autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with (
        open_node(network, SWARM, tmp_path, "a") as a,
        open_node(network, SWARM, tmp_path, "b") as b,
        open_node(network, SWARM, tmp_path, "c") as c,
    ):
        for source in (a, b):
            source.hold(SIGNED, FILES)
        network.set_fault(a.peer, c.peer, slow)
        network.set_fault(b.peer, c.peer, cut_after(network, 8))
        await c.dial(a, b)
        by_peer = await c.fetch(SIGNED)
        assert is_whole(c)
        assert 0 < by_peer[b.peer] < by_peer[a.peer]
        assert c.transport.connected_peers() == {a.peer}
        assert c.faults == [], "to vanish breaks no promise"


async def test_an_only_source_whose_connection_drops_again_and_again_is_not_given_up(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    network = MemoryNetwork()
    async with open_node(network, SWARM, tmp_path, "a") as a, open_node(network, SWARM, tmp_path, "b") as b:
        a.hold(SIGNED, FILES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(b.fetch, SIGNED)
            for _ in range(MAX_FAILURES + 2):
                network.set_fault(a.peer, b.peer, cut_after(network, 5))
                await b.dial(a)
                await trio.sleep(5)
                assert a.peer not in b.transport.connected_peers()
            network.set_fault(a.peer, b.peer, None)
            await b.dial(a)
        assert is_whole(b)
        assert b.faults == []


async def test_streams_that_break_shortly_before_their_connection_break_no_promise(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def break_streams(transfer: Transfer) -> bytes:
        if transfer.protocol == exchange.CHUNKS:
            raise StreamBroken("the line goes down")
        return transfer.data

    network = MemoryNetwork()
    async with open_node(network, SWARM, tmp_path, "a") as a, open_node(network, SWARM, tmp_path, "b") as b:
        a.hold(SIGNED, FILES)
        network.set_fault(a.peer, b.peer, break_streams)
        await b.dial(a)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(b.fetch, SIGNED)
            await trio.sleep(0.3)
            network.cut(a.peer, b.peer)
            network.set_fault(a.peer, b.peer, None)
            await b.dial(a)
        assert is_whole(b)
        assert b.faults == []


async def test_a_fetch_begun_alone_goes_on_when_somebody_comes(tmp_path: Path, autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with open_node(network, SWARM, tmp_path, "a") as a, open_node(network, SWARM, tmp_path, "b") as b:
        a.hold(SIGNED, FILES)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(b.fetch, SIGNED)
            await trio.sleep(STARVED_S / 2)
            await b.dial(a)
        assert is_whole(b)


async def test_when_nobody_holds_what_is_missing_the_fetch_says_so_and_can_be_repeated(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    network = MemoryNetwork()
    async with open_node(network, SWARM, tmp_path, "a") as a, open_node(network, SWARM, tmp_path, "b") as b:
        a.store.begin(SIGNED)
        a.store.put(SIGNED.hash, 0, chunk_data(SIGNED, FILES, 0))
        await b.dial(a)
        with pytest.raises(Starved, match=f"{CHUNKS - 1} of its {CHUNKS} chunks"):
            await b.fetch(SIGNED)
        a.hold(SIGNED, FILES)
        assert await b.fetch(SIGNED) == {a.peer: TOTAL - SIGNED.manifest.chunks[0].size}
        assert is_whole(b)


async def test_who_falls_behind_with_connection_events_hears_of_the_changes_all_the_same(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    network = MemoryNetwork()
    async with (
        open_node(network, SWARM, tmp_path, "a") as a,
        open_node(network, SWARM, tmp_path, "b") as b,
        open_node(network, SWARM, tmp_path, "c") as c,
    ):
        b.hold(SIGNED, FILES)
        await c.dial(a)
        await trio.testing.wait_all_tasks_blocked()
        c.transport.hub.close()  # as the hub does to a subscriber that is behind
        network.cut(a.peer, c.peer)
        await c.dial(b)
        await trio.testing.wait_all_tasks_blocked()
        assert c.distribution._links.keys() == {b.peer}
        await c.fetch(SIGNED)
        assert is_whole(c)


# Peers that break their word.


async def test_wrong_bytes_are_reported_and_neither_stored_nor_relayed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    network = MemoryNetwork()
    async with open_node(network, SWARM, tmp_path, "a") as a, open_node(network, SWARM, tmp_path, "b") as b:
        a.hold(SIGNED, FILES)
        network.set_fault(a.peer, b.peer, corrupting)
        told: list[object] = []
        b.distribution.tell_gained = told.append
        await b.dial(a)
        with pytest.raises(Starved):
            await b.fetch(SIGNED)
        assert b.faults == [(a.peer, Fault.CORRUPT_CHUNK)]
        assert len(b.store.missing(SIGNED.hash)) == CHUNKS
        assert told == []
        assert b.distribution.fetched_bytes == 0


async def test_a_peer_that_sends_wrong_bytes_is_asked_no_more_and_others_complete(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    network = MemoryNetwork()
    async with (
        open_node(network, SWARM, tmp_path, "a") as a,
        scripted(network, "liar") as liar,
        open_node(network, SWARM, tmp_path, "b") as b,
    ):
        a.hold(SIGNED, FILES)
        network.set_fault(a.peer, b.peer, slow)
        liar.answer(lambda request: exchange.Chunk(cid=request.cid, data=b"rubbish"))
        await b.dial(a)
        await b.transport.dial(liar.transport.addresses())
        assert await b.fetch(SIGNED) == {a.peer: TOTAL}
        assert is_whole(b)
        assert b.faults == [(liar.transport.peer_id, Fault.CORRUPT_CHUNK)]
        assert len(liar.requests) <= WINDOW


async def test_of_a_peer_that_is_ignored_nothing_stays_outstanding(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def lie_once(frames: FrameStream) -> None:
        for _ in range(WINDOW):
            liar.requests.append((await frames.receive(exchange.Request)).cid)
        await frames.send(exchange.Chunk(cid=liar.requests[0], data=b"rubbish"))
        await frames.receive_bytes()

    network = MemoryNetwork()
    async with (
        scripted(network, "liar") as liar,
        open_node(network, SWARM, tmp_path, "b") as b,
        trio.open_nursery() as nursery,
    ):
        liar.handle(exchange.CHUNKS, lie_once)
        await b.transport.dial(liar.transport.addresses())
        nursery.start_soon(b.fetch, SIGNED)
        await trio.sleep(1)
        assert b.faults == [(liar.transport.peer_id, Fault.CORRUPT_CHUNK)]
        (link,) = b.distribution._links.values()
        assert not link.owed
        assert not link.outbox
        nursery.cancel_scope.cancel()


async def test_when_control_ends_the_data_streams_are_closed_as_well(tmp_path: Path, autojump_clock: MockClock) -> None:
    open_streams = 0

    async def serve(frames: FrameStream) -> None:
        nonlocal open_streams
        open_streams += 1
        try:
            while (request := await frames.receive(exchange.Request)) is not None:
                await frames.send(exchange.Chunk(cid=request.cid, data=data_of(request.cid)))
        finally:
            open_streams -= 1

    network = MemoryNetwork()
    async with scripted(network, "peer") as peer, open_node(network, SWARM, tmp_path, "b") as b:
        peer.handle(exchange.CHUNKS, serve)
        await b.transport.dial(peer.transport.addresses())
        await b.fetch(SIGNED)
        assert open_streams == 1
        await peer.controls[-1].stream.abort()
        await trio.testing.wait_all_tasks_blocked()
        assert open_streams == 0


@pytest.mark.parametrize("kind", ["silent", "missing", "resetting", "closing"])
async def test_holdings_without_data_are_a_broken_promise_and_others_complete(
    tmp_path: Path, autojump_clock: MockClock, kind: str
) -> None:
    async def reset(frames: FrameStream) -> None:
        liar.requests.append((await frames.receive(exchange.Request)).cid)
        raise StreamBroken("not for you")

    async def close(frames: FrameStream) -> None:
        liar.requests.append((await frames.receive(exchange.Request)).cid)

    network = MemoryNetwork()
    async with (
        open_node(network, SWARM, tmp_path, "a") as a,
        scripted(network, "liar") as liar,
        open_node(network, SWARM, tmp_path, "b") as b,
    ):
        match kind:
            case "missing":
                liar.answer(lambda request: exchange.Missing(cid=request.cid))
            case "resetting":
                liar.handle(exchange.CHUNKS, reset)
            case "closing":
                liar.handle(exchange.CHUNKS, close)
        await b.transport.dial(liar.transport.addresses())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(b.fetch, SIGNED)
            with trio.fail_after(MAX_FAILURES * (TIMEOUT_S + FAILURE_PAUSE_S)):
                while not b.faults:
                    await trio.sleep(0.1)
            a.hold(SIGNED, FILES)
            await b.dial(a)
        assert is_whole(b)
        assert b.faults == [(liar.transport.peer_id, Fault.BROKEN_PROMISE)]
        assert len(liar.requests) <= WINDOW + MAX_FAILURES


async def test_an_answer_for_another_chunk_is_reported_and_its_stream_not_used_again(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    network = MemoryNetwork()
    async with scripted(network, "liar") as liar, open_node(network, SWARM, tmp_path, "b") as b:
        liar.answer(lambda request: exchange.Busy(cid=cid_of(b"another"), retry_after_ms=0))
        await b.transport.dial(liar.transport.addresses())
        with pytest.raises(Starved):
            await b.fetch(SIGNED)
        assert set(b.faults) == {(liar.transport.peer_id, Fault.BROKEN_PROMISE)}
        assert len(liar.requests) <= WINDOW + MAX_FAILURES


async def test_rubbish_on_the_control_stream_is_reported_and_the_peer_left_alone_for_a_while(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async def rubbish(frames: FrameStream) -> None:
        liar.controls.append(frames)
        await frames.receive(exchange.Want)
        await frames.send_bytes(b"\xc1")
        await frames.receive_bytes()

    network = MemoryNetwork()
    async with scripted(network, "liar") as liar, open_node(network, SWARM, tmp_path, "b") as b:
        liar.handle(exchange.EXCHANGE, rubbish)
        await b.transport.dial(liar.transport.addresses())
        with pytest.raises(Starved):
            await b.fetch(SIGNED)
        assert b.faults == [(liar.transport.peer_id, Fault.MALFORMED)]
        await trio.sleep(FAULT_PAUSE_S)
        assert len(liar.controls) == 2


@pytest.mark.parametrize("flood", [exchange.Have(manifest=SIGNED.hash, bitmap=BITMAP), exchange.Gained(chunks=[])])
async def test_a_flood_of_holdings_is_reported_and_listened_to_no_longer(
    tmp_path: Path, autojump_clock: MockClock, flood: exchange.ExchangeFrame
) -> None:
    told = 0

    async def repeat(frames: FrameStream) -> None:
        nonlocal told
        await liar.claim_once(frames)
        while told < 10 * MAX_CHUNKS:
            await frames.send_together([flood] * 100)
            told += 100

    network = MemoryNetwork()
    async with scripted(network, "liar") as liar, open_node(network, SWARM, tmp_path, "b") as b:
        liar.handle(exchange.EXCHANGE, repeat)
        await b.transport.dial(liar.transport.addresses())
        with pytest.raises(Starved):
            await b.fetch(SIGNED)
        assert b.faults == [(liar.transport.peer_id, Fault.OVERSIZED)]
        assert told < MAX_CHUNKS


async def test_holdings_beyond_the_table_are_ignored(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def exaggerate(frames: FrameStream) -> None:
        want = await frames.receive(exchange.Want)
        await frames.send(exchange.Gained(chunks=[0]))
        await frames.send(exchange.Have(manifest=NEXT.hash, bitmap=BITMAP))
        await frames.send(exchange.Have(manifest=want.manifest, bitmap=bytes(len(BITMAP)) + b"\xff" * 100))
        await frames.send(exchange.Gained(chunks=[CHUNKS, MAX_CHUNKS - 1, 1]))
        await frames.receive_bytes()

    network = MemoryNetwork()
    async with scripted(network, "peer") as peer, open_node(network, SWARM, tmp_path, "b") as b:
        peer.handle(exchange.EXCHANGE, exaggerate)
        peer.answer(lambda request: exchange.Chunk(cid=request.cid, data=data_of(request.cid)))
        await b.transport.dial(peer.transport.addresses())
        with pytest.raises(Starved):
            await b.fetch(SIGNED)
        assert peer.requests == [SIGNED.manifest.chunks[1].cid]
        assert b.faults == []


async def test_a_peer_that_reopens_control_while_it_owes_chunks_is_owed_nothing(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    network = MemoryNetwork()
    async with scripted(network, "peer") as peer, open_node(network, SWARM, tmp_path, "b") as b:
        await b.transport.dial(peer.transport.addresses())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(b.fetch, SIGNED)
            for round_number in range(1, 6):
                while len(peer.controls) < round_number or len(peer.requests) < WINDOW * round_number:
                    await trio.sleep(0.1)
                (link,) = b.distribution._links.values()
                assert len(link.owed) == WINDOW
                await peer.controls[-1].stream.abort()
            peer.answer(lambda request: exchange.Chunk(cid=request.cid, data=data_of(request.cid)))
        assert is_whole(b)


async def test_a_manifest_that_lies_about_a_chunk_ends_the_fetch_and_blames_no_peer(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    data = b"three"
    manifest = Manifest(
        version=PolicyVersion(1, 3),
        created_ms=1,
        certificate=SWARM.certificate,
        files=[FileEntry("config.json", len(data) + 1, [0])],
        chunks=[ChunkRef(cid_of(data), len(data) + 1)],
        tensors=[],
    )
    signed = sign_manifest(SWARM.learner, SWARM.authority, manifest)
    network = MemoryNetwork()
    async with scripted(network, "peer") as peer, open_node(network, SWARM, tmp_path, "b") as b:
        peer.answer(lambda request: exchange.Chunk(cid=request.cid, data=data))
        await b.transport.dial(peer.transport.addresses())
        with pytest.raises(PeerError, match="manifest"):
            await b.fetch(signed)
        assert b.faults == []


# Our own troubles.


async def test_a_full_disk_ends_the_fetch_with_the_store_s_error_and_what_arrived_stays(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    written, pwrite = 0, os.pwrite

    def fill_up(handle: int, data: bytes, offset: int) -> int:
        nonlocal written
        written += len(data)
        if written > TOTAL / 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        return pwrite(handle, data, offset)

    network = MemoryNetwork()
    async with open_node(network, SWARM, tmp_path, "a") as a, open_node(network, SWARM, tmp_path, "b") as b:
        a.hold(SIGNED, FILES)
        await b.dial(a)
        b.store.begin(SIGNED)
        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", fill_up)
            with pytest.raises(StoreFull):
                await b.fetch(SIGNED)
        left = len(b.store.missing(SIGNED.hash))
        assert 0 < left < CHUNKS
        await b.fetch(SIGNED)
        assert is_whole(b)
        assert b.faults == []


async def test_a_version_evicted_while_it_is_fetched_ends_the_fetch(tmp_path: Path, autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with open_node(network, SWARM, tmp_path, "a") as a, open_node(network, SWARM, tmp_path, "b") as b:
        a.hold(SIGNED, FILES)
        network.set_fault(a.peer, b.peer, slow)
        await b.dial(a)

        async def evict() -> None:
            await trio.sleep(0.3)
            b.store.evict(keep=[])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(evict)
            with pytest.raises(VersionUnknown):
                await b.fetch(SIGNED)


async def test_a_fetch_that_is_cancelled_leaves_nothing_outstanding_and_the_next_one_goes_ahead(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    network = MemoryNetwork()
    async with open_node(network, SWARM, tmp_path, "a") as a, open_node(network, SWARM, tmp_path, "b") as b:
        a.hold(SIGNED, FILES)
        a.hold(NEXT, NEXT_FILES)
        await b.dial(a)
        network.set_fault(a.peer, b.peer, frozen)
        for _ in range(5):
            with trio.move_on_after(TIMEOUT_S / 2):
                await b.fetch(SIGNED)
            await trio.testing.wait_all_tasks_blocked()
            assert not b.store.is_complete(SIGNED.hash)
            (link,) = b.distribution._links.values()
            assert not link.owed
            assert not link.outbox
        network.set_fault(a.peer, b.peer, None)
        await b.fetch(NEXT)
        assert b.store.is_complete(NEXT.hash)
        assert b.faults == []


async def test_two_fetches_at_once_are_our_mistake(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_node(MemoryNetwork(), SWARM, tmp_path, "a") as a, trio.open_nursery() as nursery:
        nursery.start_soon(a.fetch, SIGNED)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(LocalProtocolError):
            await a.fetch(NEXT)
        nursery.cancel_scope.cancel()


def test_peer_ids_here_are_real() -> None:
    assert len(peer_of("a")) == 52
    assert peer_of("a") != peer_of("b")
    assert isinstance(PeerId(peer_of("a")), str)


async def test_who_exchanges_no_chunks_is_asked_ever_more_seldom(tmp_path: Path, autojump_clock: MockClock) -> None:
    network, asked = MemoryNetwork(), list[float]()
    async with open_node(network, SWARM, tmp_path, "a") as a, network.node("b") as b:
        opening = a.transport.open_stream

        async def open_stream(peer: PeerId, protocol: str) -> Stream:
            if protocol == exchange.EXCHANGE:
                asked.append(trio.current_time())
            return await opening(peer, protocol)

        a.transport.open_stream = open_stream  # type: ignore[method-assign]
        await a.transport.dial(b.addresses())
        await trio.sleep(200.0)
    pauses = [later - at for at, later in itertools.pairwise(asked)]
    assert pauses[:3] == pytest.approx([1.0, 2.0, 4.0], rel=0.1)
    assert pauses[3:] == pytest.approx([REFUSED_MOST_S] * len(pauses[3:]), rel=0.1)
    assert REFUSED_MOST_S < STARVED_S
