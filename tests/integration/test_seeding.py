"""Seeding: the source sends each chunk about once, its followers relay the rest; which chunks they are shown."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from protocol.core.errors import LocalProtocolError
from protocol.versions import exchange
from protocol.versions.manifest import SignedManifest
from swarm.testing.memory_transport import MemoryNetwork, MemoryTransport, Transfer
from swarm.transfer.chunk_picker import TIMEOUT_S
from swarm.transfer.exchange import MAX_SEEDS, ChunkExchange
from swarm.transfer.super_seeding import AHEAD
from swarm.transport.framing import FrameStream
from swarm.transport.interface import Stream
from tests.support import swarm_fixture as swarming
from tests.support.store_fixture import chunk_data, model_files, small_model, small_swarm
from tests.support.swarm_fixture import SwarmNode, indices, open_node, peer_of

inline_threads = pytest.fixture(autouse=True)(swarming.inline_threads)

SWARM = small_swarm()
FILES = small_model(1)
SIGNED = SWARM.publish(FILES)
CHUNKS = len(SIGNED.manifest.chunks)
TOTAL = sum(chunk.size for chunk in SIGNED.manifest.chunks)


async def slow(transfer: Transfer) -> bytes:
    """Delay a chunk a while, and a small message hardly at all."""
    await trio.sleep(0.05 if len(transfer.data) > 128 else 0.001)
    return transfer.data


async def frozen(transfer: Transfer) -> bytes:
    if transfer.protocol == exchange.CHUNKS:
        await trio.sleep_forever()
    return transfer.data


def is_whole(node: SwarmNode) -> bool:
    return node.store.is_complete(SIGNED.hash) and model_files(node.store.directory(SIGNED.hash)) == FILES


@asynccontextmanager
async def swarm_of(
    root: Path, num_peers: int, *, mesh: bool = True
) -> AsyncIterator[tuple[SwarmNode, list[SwarmNode]]]:
    """Yield a source that seeds, and peers, all connected over slow links; without `mesh`, to the source alone."""
    network = MemoryNetwork()
    async with AsyncExitStack() as stack:
        source = await stack.enter_async_context(open_node(network, SWARM, root, "source"))
        peers = [await stack.enter_async_context(open_node(network, SWARM, root, f"p{i}")) for i in range(num_peers)]
        for node in [source, *peers]:
            for other in [source, *peers]:
                network.set_fault(node.peer, other.peer, slow)
                node.transport.trust(other.peer)  # as the peers of a learner are, and those that it introduced
        for index, peer in enumerate(peers):
            await peer.dial(source, *(peers[:index] if mesh else ()))
        source.distribution.seed(SIGNED)
        source.hold(SIGNED, FILES)
        await trio.testing.wait_all_tasks_blocked()
        yield source, peers


@pytest.mark.parametrize("num_peers", [2, 5])
async def test_the_source_gives_about_one_copy_and_the_peers_the_others(
    tmp_path: Path, autojump_clock: MockClock, num_peers: int
) -> None:
    async with swarm_of(tmp_path, num_peers) as (source, peers):
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(peer.fetch, SIGNED)
        assert all(is_whole(peer) for peer in peers)
        # 1.3 copies usually: after each of so few chunks was sent once, the source also helps with chunks on their way.
        assert TOTAL <= source.serving.served_bytes <= 2 * TOTAL
        assert sum(peer.distribution.duplicate_bytes for peer in peers) <= 0.1 * TOTAL
        assert all(peer.faults == [] for peer in [source, *peers])


async def test_a_single_follower_and_followers_that_cannot_reach_each_other_get_it_all_from_the_source(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    for num_peers in (1, 3):
        async with swarm_of(tmp_path / str(num_peers), num_peers, mesh=False) as (source, peers):
            began = trio.current_time()
            async with trio.open_nursery() as nursery:
                for peer in peers:
                    nursery.start_soon(peer.fetch, SIGNED)
            assert all(is_whole(peer) for peer in peers)
            assert source.serving.served_bytes == num_peers * TOTAL
            assert trio.current_time() - began < 2 * num_peers * CHUNKS * 0.05, (
                "the transfer must not wait for a timeout"
            )


async def test_a_follower_that_comes_late_and_one_that_leaves_early_harm_nobody(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with swarm_of(tmp_path, 4) as (source, peers):
        *steady, leaver, late = peers

        async def leave() -> None:
            with trio.move_on_after(0.3):
                await leaver.fetch(SIGNED)
            for other in [source, *steady, late]:
                source.transport.network.block(leaver.peer, other.peer)

        async with trio.open_nursery() as nursery:
            for peer in steady:
                nursery.start_soon(peer.fetch, SIGNED)
            nursery.start_soon(leave)
            await trio.sleep(0.5)
            await late.fetch(SIGNED)
        assert all(is_whole(peer) for peer in [*steady, late])
        assert not is_whole(leaver)


async def test_who_takes_and_never_gives_delays_the_others_and_no_more(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with swarm_of(tmp_path, 3) as (source, peers):
        *honest, leech = peers
        for other in honest:
            source.transport.network.set_fault(leech.peer, other.peer, frozen)
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for peer in honest:
                nursery.start_soon(peer.fetch, SIGNED)
            nursery.start_soon(leech.fetch, SIGNED)
        assert all(is_whole(peer) for peer in peers)
        assert trio.current_time() - began < TIMEOUT_S + 2 * CHUNKS * 0.05


# Chunks that a follower is shown.


async def open_control(client: MemoryTransport) -> FrameStream:
    frames = FrameStream(await client.open_stream(peer_of("source"), exchange.EXCHANGE), exchange.MAX_HAVE_BYTES)
    await frames.send(exchange.Want(manifest=SIGNED.hash))
    return frames


async def shown_to(frames: FrameStream) -> set[int]:
    """Return all chunks that this follower is shown until no more come."""
    seen: set[int] = set()
    while True:
        with trio.move_on_after(0.5):
            match await frames.receive(exchange.ExchangeFrame):
                case exchange.Have(bitmap=bitmap):
                    seen = set(indices(bitmap))
                case exchange.Gained(chunks=chunks):
                    seen |= set(chunks)
            continue
        return seen


async def test_a_follower_is_shown_what_it_is_offered_and_in_the_end_everything(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with swarm_of(tmp_path, 2) as (_, peers):
        ours, theirs = [await open_control(peer.transport) for peer in peers]
        first, second = await shown_to(ours), await shown_to(theirs)
        assert 0 < len(first | second) <= AHEAD
        assert not first & second
        async with trio.open_nursery() as nursery:
            for peer in peers:
                nursery.start_soon(peer.fetch, SIGNED)
        assert await shown_to(ours) | first == set(range(CHUNKS))


async def test_chunks_beyond_those_to_be_scattered_are_shown_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with swarm_of(tmp_path, 1) as (source, peers):
        del source.distribution._seeds[SIGNED.hash]
        source.distribution.seed(SIGNED, range(5, CHUNKS))
        assert set(range(5)) < await shown_to(await open_control(peers[0].transport)) < set(range(CHUNKS))


async def test_a_peer_is_not_told_that_we_hold_what_it_holds(tmp_path: Path, autojump_clock: MockClock) -> None:
    async def claim(stream: Stream) -> None:
        frames = FrameStream(stream, exchange.MAX_HAVE_BYTES)
        while (want := await frames.receive(exchange.Want)) is not None:
            await frames.send(exchange.Have(manifest=want.manifest, bitmap=bytes([0b110])))

    network = MemoryNetwork()
    async with (
        open_node(network, SWARM, tmp_path, "a") as a,
        open_node(network, SWARM, tmp_path, "source") as node,
        network.node("client", peer_id=peer_of("client")) as client,
        trio.open_nursery() as nursery,
    ):
        a.store.begin(SIGNED)
        for chunk in (1, 3):
            a.store.put(SIGNED.hash, chunk, chunk_data(SIGNED, FILES, chunk))
        client.handle(exchange.EXCHANGE, claim)
        await client.dial(node.transport.addresses())
        nursery.start_soon(node.fetch, SIGNED)
        await trio.testing.wait_all_tasks_blocked()
        frames = await open_control(client)
        assert await shown_to(frames) == set()
        await node.dial(a)
        assert await shown_to(frames) == {3}
        assert await shown_to(await open_control(client)) == {1, 3}, "a peer that asks must be told every chunk"
        nursery.cancel_scope.cancel()


# Mistakes, and bounds.


async def test_seeding_needs_the_serving_side(tmp_path: Path) -> None:
    async with open_node(MemoryNetwork(), SWARM, tmp_path, "a") as a:
        alone = ChunkExchange(
            transport=a.transport, store=a.store, tell_gained=lambda signed: None, report=a.distribution.report
        )
        with pytest.raises(LocalProtocolError, match="serving"):
            alone.seed(SIGNED)


async def test_a_bounded_number_of_versions_is_scattered_and_older_ones_are_shown_whole(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    def published(version: int) -> SignedManifest:
        return SWARM.publish(small_model(version), version=version)

    async with open_node(MemoryNetwork(), SWARM, tmp_path, "a") as a:
        versions = [published(version) for version in range(1, MAX_SEEDS + 3)]
        for signed in versions:
            a.distribution.seed(signed)
        assert list(a.distribution._seeds) == [signed.hash for signed in versions[-MAX_SEEDS:]]
        assert a.serving.audiences.keys() == a.distribution._seeds.keys()


async def test_a_part_of_a_version_can_be_fetched_alone(tmp_path: Path, autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    async with open_node(network, SWARM, tmp_path, "a") as a, open_node(network, SWARM, tmp_path, "b") as b:
        a.hold(SIGNED, FILES)
        await b.dial(a)
        b.store.begin(SIGNED)
        await b.distribution.fetch(SIGNED, {1, 4, 7})
        assert set(range(CHUNKS)) - set(b.store.missing(SIGNED.hash)) == {1, 4, 7}
        await b.distribution.fetch(SIGNED)
        assert b.store.missing(SIGNED.hash) == []
