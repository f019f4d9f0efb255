"""Ask around for a manifest in pieces, with one honest peer among liars, over memory and over libp2p."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing
from trio.testing import MockClock

from protocol.core.codec import encode
from protocol.core.digest import digest_of
from protocol.core.envelope import Kind, seal
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import ManifestHash, PeerId
from protocol.core.limits import MANIFEST_PIECE_BYTES, MAX_MANIFEST_BYTES, MAX_REQUEST_BYTES
from protocol.versions import exchange
from protocol.versions.manifest_pieces import manifest_piece
from swarm.libp2p import open_libp2p
from swarm.store import ChunkStore
from swarm.testing.memory_transport import MemoryNetwork, MemoryTransport
from swarm.transfer.serving import Knowledge, Serving
from swarm.transport.framing import FrameStream
from swarm.transport.interface import Stream, StreamBroken, Transport
from swarm.versions.manifest_inquiry import MANIFEST_TIMEOUT_S, MAX_CARRIERS
from swarm.versions.manifest_search import ASK_TIMEOUT_S, ManifestSearch
from tests.support import swarm_fixture as swarming
from tests.support.store_fixture import MANY_BYTES, many_chunks, small_model, small_swarm
from tests.support.swarm_fixture import peer_of

SWARM = small_swarm()
SIGNED = SWARM.publish(small_model(1))
OTHER = SWARM.publish(small_model(2))
PIECE = 200
assert len(SIGNED.raw) > 5 * PIECE

Answering = Callable[[exchange.AskManifest, int], Awaitable[exchange.Answer]]
"""Returns the answer to a question for a manifest, which is the nth of its stream."""


async def honest(question: exchange.AskManifest, number: int) -> exchange.Answer:
    return manifest_piece(SIGNED.raw, question.offset, PIECE)


@dataclass
class Scene:
    """An asker, those it is connected to, and what it was heard to ask and to report."""

    search: ManifestSearch
    network: MemoryNetwork
    stack: AsyncExitStack
    faults: list[tuple[PeerId, Fault]] = field(default_factory=list)
    asked: list[PeerId] = field(default_factory=list)
    carrying: set[PeerId] = field(default_factory=set)

    async def peer(self, name: str, answering: Answering) -> PeerId:
        """Somebody who answers so is connected from now on."""
        transport = await self.present(name, answering)
        await transport.dial(self.search.transport.addresses())
        return transport.peer_id

    async def present(self, name: str, answering: Answering) -> MemoryTransport:
        """Somebody who answers so is there, and not connected yet."""
        transport = await self.stack.enter_async_context(self.network.node(name, peer_id=peer_of(name)))

        async def answer(stream: Stream) -> None:
            self.asked.append(transport.peer_id)
            frames, number = FrameStream(stream, MAX_REQUEST_BYTES), 0
            async with trio.open_nursery() as nursery:
                try:
                    while (question := await frames.receive(exchange.Question)) is not None:
                        number += 1
                        if number > 1:
                            self.carrying.add(transport.peer_id)
                        nursery.start_soon(reply, frames, question, number)
                except StreamBroken:
                    pass
                self.carrying.discard(transport.peer_id)
                nursery.cancel_scope.cancel()

        async def reply(frames: FrameStream, question: exchange.AskManifest, number: int) -> None:
            await frames.send(await answering(question, number))

        transport.handle(exchange.ASK, answer)
        return transport


@asynccontextmanager
async def scene(*, piece_bytes: int = PIECE, seed: int = 1) -> AsyncIterator[Scene]:
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        transport: MemoryTransport = await stack.enter_async_context(network.node("asker"))
        faults: list[tuple[PeerId, Fault]] = []
        search = ManifestSearch(
            transport=transport,
            authority=SWARM.authority,
            report=lambda peer, fault, detail: faults.append((peer, fault)),
            rng=random.Random(seed),
            piece_bytes=piece_bytes,
        )
        yield Scene(search=search, network=network, stack=stack, faults=faults)


inline_threads = pytest.fixture(swarming.inline_threads)
in_virtual_time = pytest.mark.usefixtures("inline_threads")


# Liars. Each is asked first, since nobody else is there; then comes somebody honest.


async def promising_too_much(question: exchange.AskManifest, number: int) -> exchange.Answer:
    return exchange.TellManifest(manifest=SIGNED.raw[:PIECE], total=MAX_MANIFEST_BYTES * 2)


async def promising_more_than_announced(question: exchange.AskManifest, number: int) -> exchange.Answer:
    return exchange.TellManifest(manifest=SIGNED.raw[:PIECE], total=MAX_MANIFEST_BYTES)


async def changing_its_total(question: exchange.AskManifest, number: int) -> exchange.Answer:
    answer = manifest_piece(SIGNED.raw, question.offset, PIECE)
    assert isinstance(answer, exchange.TellManifest)
    return msgspec.structs.replace(answer, total=answer.total + number - 1)


async def sending_too_little(question: exchange.AskManifest, number: int) -> exchange.Answer:
    return exchange.TellManifest(manifest=SIGNED.raw[question.offset :][:9], total=len(SIGNED.raw))


async def sending_nothing(question: exchange.AskManifest, number: int) -> exchange.Answer:
    return exchange.TellManifest(manifest=b"", total=len(SIGNED.raw))


async def wrong_at_the_end(question: exchange.AskManifest, number: int) -> exchange.Answer:
    raw = SIGNED.raw[:-1] + bytes([SIGNED.raw[-1] ^ 1])
    return manifest_piece(raw, question.offset, PIECE)


async def of_another(question: exchange.AskManifest, number: int) -> exchange.Answer:
    return manifest_piece(OTHER.raw, question.offset, PIECE)


async def off_the_point(question: exchange.AskManifest, number: int) -> exchange.Answer:
    return exchange.TellNewest()


@in_virtual_time
@pytest.mark.parametrize(
    ("lying", "fault"),
    [
        (promising_too_much, Fault.OVERSIZED),
        (promising_more_than_announced, Fault.BROKEN_PROMISE),
        (changing_its_total, Fault.BROKEN_PROMISE),
        (sending_too_little, Fault.BROKEN_PROMISE),
        (sending_nothing, Fault.BROKEN_PROMISE),
        (wrong_at_the_end, Fault.BROKEN_PROMISE),
        (of_another, Fault.BROKEN_PROMISE),
        (off_the_point, Fault.BROKEN_PROMISE),
    ],
)
async def test_a_lie_is_reported_once_and_the_manifest_comes_from_somebody_else(
    autojump_clock: MockClock, lying: Answering, fault: Fault
) -> None:
    async with scene() as play:
        liar = await play.peer("liar", lying)
        size_bytes = len(OTHER.raw) if lying is of_another else len(SIGNED.raw)
        for _ in range(3):
            assert await play.search.find(SIGNED.hash, size_bytes=size_bytes) is None
        assert play.faults == [(liar, fault)]
        assert play.asked == [liar], "the liar must not be asked for this manifest again"
        await play.peer("honest", honest)
        assert await play.search.find(SIGNED.hash, size_bytes=len(SIGNED.raw)) == SIGNED
        assert play.faults == [(liar, fault)]


@in_virtual_time
async def test_who_stops_halfway_costs_a_second_and_is_asked_last_from_then_on(autojump_clock: MockClock) -> None:
    async def stopping(question: exchange.AskManifest, number: int) -> exchange.Answer:
        if number == 4:
            await trio.sleep_forever()
        return await honest(question, number)

    async with scene() as play:
        stopper = await play.peer("stopper", stopping)
        good = await play.present("honest", honest)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(play.search.find, SIGNED.hash)
            await trio.testing.wait_all_tasks_blocked()
            await good.dial(play.search.transport.addresses())
        assert trio.current_time() == pytest.approx(MANIFEST_TIMEOUT_S)
        assert play.asked == [stopper, good.peer_id]
        for _ in range(10):
            assert await play.search.find(SIGNED.hash) == SIGNED
        assert play.asked == [stopper] + 11 * [good.peer_id]
        assert play.faults == [], "it may be its line"


@in_virtual_time
async def test_who_holds_it_no_longer_is_left_without_blame(autojump_clock: MockClock) -> None:
    async def evicting(question: exchange.AskManifest, number: int) -> exchange.Answer:
        return await honest(question, number) if number < 3 else exchange.NotHeld()

    async with scene() as play:
        await play.peer("evicting", evicting)
        assert await play.search.find(SIGNED.hash) is None
        await play.peer("honest", honest)
        assert await play.search.find(SIGNED.hash) == SIGNED
        assert play.faults == []


@in_virtual_time
async def test_a_slow_line_that_goes_on_is_waited_for_however_many_pieces_it_takes(autojump_clock: MockClock) -> None:
    """Each piece takes nearly all of its time: the deadline is that of a piece."""

    async def slow(question: exchange.AskManifest, number: int) -> exchange.Answer:
        await trio.sleep(0.9 * ASK_TIMEOUT_S)
        return await honest(question, number)

    async with scene() as play:
        await play.peer("slow", slow)
        assert await play.search.find(SIGNED.hash) == SIGNED
        assert trio.current_time() > 5 * 0.9 * ASK_TIMEOUT_S


@in_virtual_time
async def test_silence_for_the_time_of_a_piece_ends_it(autojump_clock: MockClock) -> None:
    async with scene() as play:
        await play.peer("mute", lambda question, number: trio.sleep_forever())
        assert await play.search.find(SIGNED.hash) is None
        assert trio.current_time() == pytest.approx(ASK_TIMEOUT_S)


@in_virtual_time
async def test_somebody_honest_who_comes_while_all_here_are_slow_is_asked(autojump_clock: MockClock) -> None:
    async with scene() as play:
        await play.peer("mute", lambda question, number: trio.sleep_forever())
        late = await play.present("late", honest)

        async def come() -> None:
            await trio.sleep(5)
            await late.dial(play.search.transport.addresses())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(come)
            assert await play.search.find(SIGNED.hash) == SIGNED
        assert trio.current_time() < 5 + 2 * MANIFEST_TIMEOUT_S


@in_virtual_time
async def test_in_a_hurry_nobody_waits_for_who_does_not_keep_up(autojump_clock: MockClock) -> None:
    async with scene() as play:
        await play.peer("mute", lambda question, number: trio.sleep_forever())
        newer = False

        async def be_newer() -> None:
            nonlocal newer
            await trio.sleep(3)
            newer = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(be_newer)
            assert await play.search.find(SIGNED.hash, in_a_hurry=lambda: newer) is None
        assert 3 <= trio.current_time() < 3 + 2 * MANIFEST_TIMEOUT_S


@in_virtual_time
async def test_many_who_send_much_and_stop_before_the_end_hold_two_manifests_at_most(
    autojump_clock: MockClock,
) -> None:
    last, most = len(SIGNED.raw) // PIECE * PIECE, 0

    async def nearly(question: exchange.AskManifest, number: int) -> exchange.Answer:
        nonlocal most
        await trio.sleep(0.4)
        most = max(most, len(play.carrying))
        if question.offset == last:
            await trio.sleep_forever()
        return await honest(question, number)

    async with scene() as play:
        for number in range(8):
            await play.peer(f"nearly {number}", nearly)
        assert await play.search.find(SIGNED.hash) is None
        assert len(play.asked) == 8
        assert most == MAX_CARRIERS
        assert trio.current_time() < 3 * ASK_TIMEOUT_S


@in_virtual_time
async def test_what_its_signer_made_wrong_is_nobody_else_s_fault(autojump_clock: MockClock) -> None:
    wrong = msgspec.structs.replace(SIGNED.manifest, chunks=[])
    raw = seal(SWARM.learner, SWARM.authority.swarm, Kind.MANIFEST, encode(wrong))

    async def bearing(question: exchange.AskManifest, number: int) -> exchange.Answer:
        return manifest_piece(raw, question.offset, PIECE)

    async with scene() as play:
        await play.peer("bearer", bearing)
        with pytest.raises(PeerError, match="names a chunk that is not listed"):
            await play.search.find(ManifestHash(digest_of(raw)))
        assert play.faults == []


# Over real connections, and larger than a piece really is.


@asynccontextmanager
async def serving_node(store: ChunkStore, seed: bytes) -> AsyncIterator[Transport]:
    async with open_libp2p(seed, ["/ip4/127.0.0.1/tcp/0"], []) as transport:
        knowledge = Knowledge(genesis=SWARM.genesis, newest=lambda: b"", peers=lambda: [])
        Serving(transport=transport, store=store, knowledge=knowledge).start()
        yield transport


async def test_a_manifest_larger_than_a_piece_comes_over_libp2p(tmp_path: Path) -> None:
    signed = SWARM.publish(many_chunks(MANIFEST_PIECE_BYTES // 40), chunk_bytes=MANY_BYTES)
    assert len(signed.raw) > MANIFEST_PIECE_BYTES
    faults: list[Fault] = []
    with ChunkStore.open(tmp_path / "store", SWARM.authority) as store:
        store.begin(signed)
        async with serving_node(store, b"s" * 32) as server, open_libp2p(b"a" * 32, [], []) as asker:
            await asker.dial(server.addresses())
            search = ManifestSearch(
                transport=asker, authority=SWARM.authority, report=lambda peer, fault, detail: faults.append(fault)
            )
            found = await search.find(signed.hash, size_bytes=len(signed.raw))
            assert found is not None
            assert found.raw == signed.raw
            assert await search.find(OTHER.hash) is None
    assert faults == []
