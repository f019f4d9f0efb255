"""Serving: every question answered, holdings told as they grow, chunks sent within bounds, rubbish ends one stream."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from protocol.core.codec import encode
from protocol.core.digest import cid_of
from protocol.core.errors import Fault
from protocol.core.ids import Cid, ManifestHash
from protocol.core.limits import MAX_PEERS_TOLD
from protocol.versions import exchange
from protocol.versions.exchange import PeerAddresses
from protocol.versions.manifest import SignedManifest
from swarm.testing.memory_transport import WINDOW_BYTES, MemoryNetwork, MemoryTransport
from swarm.transfer import chunk_server, serving
from swarm.transfer.chunk_server import STRANGER_UPLOADS, UPLOADS, Served
from swarm.transfer.seed import VersionSeed
from swarm.transfer.serving import Knowledge
from swarm.transfer.super_seeding import SuperSeeder
from swarm.transfer.upload_queue import LANES, MAX_WAITING_PER_PEER, UNKNOWN_STALL_S
from swarm.transport.event_rate import Rate
from swarm.transport.framing import FrameStream
from swarm.transport.interface import StreamBroken
from tests.support import swarm_fixture as swarming
from tests.support.store_fixture import MANY_BYTES, chunk_data, many_chunks, small_model, small_swarm
from tests.support.swarm_fixture import SwarmNode, announce_manifest, indices, open_node, peer_of

inline_threads = pytest.fixture(autouse=True)(swarming.inline_threads)

SWARM = small_swarm()
FILES = small_model(1)
SIGNED = SWARM.publish(FILES)
CHUNKS = len(SIGNED.manifest.chunks)
OTHER_FILES = small_model(2)
OTHER = SWARM.publish(OTHER_FILES, version=2)
BIG_FILES = {"model.bin.json": b"".join(bytes([i]) * 2 * WINDOW_BYTES for i in range(12))}


@asynccontextmanager
async def server(root: Path, *clients: str) -> AsyncIterator[tuple[SwarmNode, list[MemoryTransport]]]:
    """A serving node, and peers of it that speak nothing themselves."""
    network = MemoryNetwork()
    async with open_node(network, SWARM, root, "server", fetches=False) as node, trio.open_nursery() as nursery:
        transports = []
        for client in clients:
            transports.append(await nursery.start(_client, network, node, client))
        yield node, transports
        nursery.cancel_scope.cancel()


async def _client(
    network: MemoryNetwork, node: SwarmNode, name: str, *, task_status: trio.TaskStatus[MemoryTransport]
) -> None:
    async with network.node(name, peer_id=peer_of(name)) as transport:
        node.transport.trust(transport.peer_id)
        await transport.dial(node.transport.addresses())
        task_status.started(transport)
        await trio.sleep_forever()


async def open_frames(client: MemoryTransport, protocol: str) -> FrameStream:
    return FrameStream(await client.open_stream(peer_of("server"), protocol), exchange.MAX_CHUNK_FRAME_BYTES)


def put(node: SwarmNode, signed: SignedManifest, files: dict[str, bytes], *chunks: int) -> None:
    for chunk in chunks:
        node.store.put(signed.hash, chunk, chunk_data(signed, files, chunk))
    node.serving.tell_gained(signed.hash)


# Questions.


async def test_every_question_is_answered_any_number_of_times_on_one_stream(tmp_path: Path) -> None:
    async with server(tmp_path, "asker") as (node, (asker,)):
        node.hold(SIGNED, FILES)
        known = [PeerAddresses(peer=peer_of(f"p{i}")) for i in range(MAX_PEERS_TOLD + 5)]
        newest = announce_manifest(SWARM, SIGNED)
        node.serving.knowledge = Knowledge(genesis=SWARM.genesis, newest=lambda: newest, peers=lambda: known)
        frames = await open_frames(asker, exchange.ASK)

        async def answer_to(question: exchange.Question) -> Any:
            await frames.send(question)
            return await frames.receive(exchange.Answer)

        for _ in range(2):
            assert await answer_to(exchange.AskGenesis()) == exchange.TellGenesis(genesis=SWARM.genesis)
            assert await answer_to(exchange.AskNewest()) == exchange.TellNewest(announcement=newest)
            assert await answer_to(exchange.AskPeers()) == exchange.TellPeers(peers=known[:MAX_PEERS_TOLD])
            told = await answer_to(exchange.AskManifest(manifest=SIGNED.hash))
            assert told == exchange.TellManifest(manifest=SIGNED.raw)
            assert await answer_to(exchange.AskManifest(manifest=OTHER.hash)) == exchange.NotHeld()


async def test_terms_are_told_by_who_has_some_and_says_so_first(tmp_path: Path) -> None:
    terms = exchange.TellTerms(certificate=SWARM.certificate, model="tiny", tasks=[exchange.TaskTerms(name="sort")])
    async with server(tmp_path, "asker") as (node, (asker,)):
        frames = await open_frames(asker, exchange.ASK)

        async def answer_to(question: exchange.Question) -> Any:
            await frames.send(question)
            return await frames.receive(exchange.Answer)

        assert await answer_to(exchange.AskTerms()) == exchange.NotHeld()
        node.serving.knowledge = Knowledge(
            genesis=SWARM.genesis,
            newest=lambda: b"",
            peers=list,
            terms=lambda token: terms if token == "sesame" else exchange.NotTold(reason="no token"),
        )
        told = await answer_to(exchange.AskGenesis())
        assert told == exchange.TellGenesis(genesis=SWARM.genesis, ext={exchange.TERMS: b""})
        assert await answer_to(exchange.AskTerms(token="sesame")) == terms
        assert await answer_to(exchange.AskTerms()) == exchange.NotTold(reason="no token")


async def test_a_manifest_larger_than_a_piece_is_answered_from_where_it_is_asked(tmp_path: Path) -> None:
    async with server(tmp_path, "asker") as (node, (asker,)):
        node.hold(SIGNED, FILES)
        node.serving.piece_bytes = size = len(SIGNED.raw) - 1
        frames = await open_frames(asker, exchange.ASK)
        for offset, answer in {
            size: exchange.TellManifest(manifest=SIGNED.raw[size:], total=size + 1),
            0: exchange.TellManifest(manifest=SIGNED.raw[:size], total=size + 1),
            size + 1: exchange.NotHeld(),
        }.items():
            await frames.send(exchange.AskManifest(manifest=SIGNED.hash, offset=offset))
            assert await frames.receive(exchange.Answer) == answer


async def test_an_answer_that_nobody_reads_is_broken_off(tmp_path: Path, autojump_clock: MockClock) -> None:
    files = many_chunks(2 * WINDOW_BYTES // 40)
    signed = SWARM.publish(files, chunk_bytes=MANY_BYTES)
    assert len(signed.raw) > 2 * WINDOW_BYTES
    async with server(tmp_path, "asker") as (node, (asker,)):
        node.store.begin(signed)
        frames = await open_frames(asker, exchange.ASK)
        await frames.send(exchange.AskManifest(manifest=signed.hash))
        await trio.sleep(chunk_server.UPLOAD_TIMEOUT_S + 1)
        with pytest.raises(StreamBroken):
            await frames.receive(exchange.Answer)


# Holdings.


async def test_what_is_held_is_told_and_then_what_is_gained(tmp_path: Path) -> None:
    async with server(tmp_path, "peer") as (node, (peer,)):
        node.store.begin(SIGNED)
        put(node, SIGNED, FILES, 0, 9)
        frames = await open_frames(peer, exchange.EXCHANGE)
        await frames.send(exchange.Want(manifest=SIGNED.hash))
        have = await frames.receive(exchange.ExchangeFrame)
        assert (have.manifest, indices(have.bitmap)) == (SIGNED.hash, [0, 9])
        put(node, SIGNED, FILES, 3)
        assert await frames.receive(exchange.ExchangeFrame) == exchange.Gained(chunks=[3])
        put(node, SIGNED, FILES, 1, 2)
        assert await frames.receive(exchange.ExchangeFrame) == exchange.Gained(chunks=[1, 2])


async def test_what_is_gained_while_the_peer_does_not_read_is_told_in_bounded_frames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "MAX_GAINED", 4)
    async with server(tmp_path, "peer") as (node, (peer,)):
        node.store.begin(SIGNED)
        frames = await open_frames(peer, exchange.EXCHANGE)
        await frames.send(exchange.Want(manifest=SIGNED.hash))
        await frames.receive(exchange.ExchangeFrame)
        put(node, SIGNED, FILES, *range(10))
        gained = [(await frames.receive(exchange.ExchangeFrame)).chunks for _ in range(3)]
        assert gained == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


async def test_nothing_is_held_of_a_manifest_never_heard_of_until_it_is(tmp_path: Path) -> None:
    async with server(tmp_path, "peer") as (node, (peer,)):
        frames = await open_frames(peer, exchange.EXCHANGE)
        await frames.send(exchange.Want(manifest=SIGNED.hash))
        assert await frames.receive(exchange.ExchangeFrame) == exchange.Have(manifest=SIGNED.hash, bitmap=b"")
        node.hold(SIGNED, FILES)
        node.serving.tell_gained(SIGNED.hash)
        assert (await frames.receive(exchange.ExchangeFrame)).chunks == list(range(CHUNKS))


async def test_wanting_another_manifest_replaces_the_first(tmp_path: Path) -> None:
    async with server(tmp_path, "peer") as (node, (peer,)):
        node.store.begin(SIGNED)
        node.store.begin(OTHER)
        frames = await open_frames(peer, exchange.EXCHANGE)
        for signed in (SIGNED, OTHER):
            await frames.send(exchange.Want(manifest=signed.hash))
            assert (await frames.receive(exchange.ExchangeFrame)).manifest == signed.hash
        fresh = [i for i in range(CHUNKS) if not node.store.holds(SIGNED.manifest.chunks[i].name)]
        put(node, SIGNED, FILES, fresh[0])
        put(node, OTHER, OTHER_FILES, node.store.missing(OTHER.hash)[0])
        told = await frames.receive(exchange.ExchangeFrame)
        assert isinstance(told, exchange.Gained)
        with trio.move_on_after(0) as time_limit:
            await frames.receive(exchange.ExchangeFrame)
        assert time_limit.cancelled_caught, "nothing more may be sent about the first manifest"


async def test_a_peer_that_turns_to_a_version_that_we_seed_hears_what_is_held_before_what_is_gained(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """The seed offers its first chunk in the turn in which it hears of the follower."""
    async with server(tmp_path, "peer") as (node, (peer,)):
        node.hold(SIGNED, FILES)
        node.hold(OTHER, OTHER_FILES)
        seeds = {}
        for signed, given in ((SIGNED, range(CHUNKS)), (OTHER, range(CHUNKS - 3, CHUNKS))):
            core = SuperSeeder(given, Random(7))
            seeds[signed.hash] = VersionSeed(signed, core, node.serving, lambda peer: None)
            node.serving.attend(signed.hash, seeds[signed.hash])
        frames = await open_frames(peer, exchange.EXCHANGE)
        haves: list[bytes] = []
        for signed in (SIGNED, OTHER, SIGNED, OTHER):
            await frames.send(exchange.Want(manifest=signed.hash))
            with trio.move_on_after(1):
                while True:
                    match await frames.receive(exchange.ExchangeFrame):
                        case exchange.Have(manifest=manifest, bitmap=bitmap):
                            haves.append(manifest)
                            named = indices(bitmap)
                        case exchange.Gained(chunks=named):
                            pass
                    shown = seeds[ManifestHash(haves[-1])].select_shown(peer.peer_id, (1 << CHUNKS) - 1)
                    assert all(shown >> chunk & 1 for chunk in named), "a chunk of one version, told of another"
        assert haves == [signed.hash for signed in (SIGNED, OTHER, SIGNED, OTHER)]


async def test_wanting_the_same_again_is_answered_by_the_whole_again(tmp_path: Path) -> None:
    async with server(tmp_path, "peer") as (node, (peer,)):
        node.store.begin(SIGNED)
        frames = await open_frames(peer, exchange.EXCHANGE)
        for chunk in range(3):
            await frames.send(exchange.Want(manifest=SIGNED.hash))
            assert indices((await frames.receive(exchange.ExchangeFrame)).bitmap) == list(range(chunk))
            put(node, SIGNED, FILES, chunk)
            assert await frames.receive(exchange.ExchangeFrame) == exchange.Gained(chunks=[chunk])


async def test_a_peer_that_leaves_is_not_remembered(tmp_path: Path) -> None:
    async with server(tmp_path, "peer", "closer") as (node, (peer, closer)):
        for client in (peer, closer):
            frames = await open_frames(client, exchange.EXCHANGE)
            await frames.send(exchange.Want(manifest=SIGNED.hash))
            await frames.receive(exchange.ExchangeFrame)
        await frames.stream.aclose()
        node.transport.network.cut(node.peer, peer.peer_id)
        await trio.testing.wait_all_tasks_blocked()
        assert not node.serving._followers
        assert not node.serving._streams


# Chunks.


async def test_chunks_are_sent_in_turn_and_counted(tmp_path: Path) -> None:
    async with server(tmp_path, "peer") as (node, (peer,)):
        node.hold(SIGNED, FILES)
        frames = await open_frames(peer, exchange.CHUNKS)
        sizes = 0
        for index in (3, 0, 3):
            chunk = SIGNED.manifest.chunks[index]
            await frames.send(exchange.Request(cid=chunk.cid))
            answer = await frames.receive(exchange.ChunkAnswer)
            assert answer == exchange.Chunk(cid=chunk.cid, data=chunk_data(SIGNED, FILES, index))
            sizes += chunk.size
        await trio.testing.wait_all_tasks_blocked()
        assert node.serving.served == {peer.peer_id: Served(chunks=3, size_bytes=sizes)}


async def test_requests_may_be_outstanding_together_and_each_has_one_answer(tmp_path: Path) -> None:
    async with server(tmp_path, "peer") as (node, (peer,)):
        node.hold(SIGNED, FILES)
        frames = await open_frames(peer, exchange.CHUNKS)
        cids = [SIGNED.manifest.chunks[index].cid for index in range(5)]
        unknown = cid_of(b"never seen")
        await frames.send_together([exchange.Request(cid=cid) for cid in (*cids, unknown)])
        answers = [await frames.receive(exchange.ChunkAnswer) for _ in range(6)]
        assert {answer.cid for answer in answers if isinstance(answer, exchange.Chunk)} == set(cids)
        assert exchange.Missing(cid=unknown) in answers


async def test_a_cancelled_request_that_was_not_begun_is_answered_by_missing(tmp_path: Path) -> None:
    async with server(tmp_path, "peer") as (node, (peer,)):
        (first, second, third, *_) = hold_big(node)
        frames = await hold_slot(peer, first)
        await frames.send_together([exchange.Request(cid=cid) for cid in (second, third)])
        await frames.send_together([exchange.Cancel(cid=cid) for cid in (first, second, cid_of(b"never asked"))])
        await trio.testing.wait_all_tasks_blocked()
        answers = [await frames.receive(exchange.ChunkAnswer) for _ in range(3)]
        assert isinstance(answers[0], exchange.Chunk), "it was on its way"
        assert answers[0].cid == first
        assert answers[1] == exchange.Missing(cid=second)
        assert isinstance(answers[2], exchange.Chunk)
        assert answers[2].cid == third
        await frames.send(exchange.Request(cid=second))
        assert isinstance(await frames.receive(exchange.ChunkAnswer), exchange.Chunk)


async def test_who_asks_no_more_still_gets_what_it_asked_for(tmp_path: Path) -> None:
    async with server(tmp_path, "peer") as (node, (peer,)):
        cids = hold_big(node)[:3]
        frames = await open_frames(peer, exchange.CHUNKS)
        await frames.send_together([exchange.Request(cid=cid) for cid in cids])
        await frames.stream.send_eof()
        assert [(await frames.receive(exchange.ChunkAnswer)).cid for _ in cids] == cids
        assert await frames.receive(exchange.ChunkAnswer) is None
        assert not node.serving._streams


async def test_a_request_made_twice_is_answered_once_by_the_chunk(tmp_path: Path) -> None:
    async with server(tmp_path, "peer") as (node, (peer,)):
        (cid, *_) = hold_big(node)
        frames = await hold_slot(peer, cid)
        again = await hold_slot(peer, cid)
        assert await again.receive(exchange.ChunkAnswer) == exchange.Busy(
            cid=cid, retry_after_ms=chunk_server.REPEATED_RETRY_MS
        )
        assert isinstance(await frames.receive(exchange.ChunkAnswer), exchange.Chunk)


async def test_what_is_not_held_is_missing_also_while_others_are_served(tmp_path: Path) -> None:
    names = [f"slow{i}" for i in range(LANES)]
    async with server(tmp_path, "peer", *names) as (node, (peer, *slow)):
        (cid, *_) = hold_big(node)
        for one in slow:
            await hold_slot(one, cid)
        frames = await open_frames(peer, exchange.CHUNKS)
        await frames.send(exchange.Request(cid=cid_of(b"never seen")))
        assert await frames.receive(exchange.ChunkAnswer) == exchange.Missing(cid=cid_of(b"never seen"))


async def test_a_chunk_that_the_disk_has_lost_is_missing_and_costs_only_itself(tmp_path: Path) -> None:
    async with server(tmp_path, "peer") as (node, (peer,)):
        node.hold(SIGNED, FILES)
        weights = node.store.directory(SIGNED.hash) / "model.safetensors"
        weights.unlink()
        entry = next(entry for entry in SIGNED.manifest.files if entry.name == weights.name)
        frames = await open_frames(peer, exchange.CHUNKS)
        lost = SIGNED.manifest.chunks[entry.chunks[0]].cid
        await frames.send(exchange.Request(cid=lost))
        assert await frames.receive(exchange.ChunkAnswer) == exchange.Missing(cid=lost)
        (trouble,) = node.troubles
        assert "model.safetensors" in trouble
        config = next(entry for entry in SIGNED.manifest.files if entry.name == "config.json")
        await frames.send(exchange.Request(cid=SIGNED.manifest.chunks[config.chunks[0]].cid))
        assert isinstance(await frames.receive(exchange.ChunkAnswer), exchange.Chunk)


async def hold_slot(peer: MemoryTransport, cid: Cid) -> FrameStream:
    """Request a chunk larger than a window and read nothing of it."""
    frames = await open_frames(peer, exchange.CHUNKS)
    await frames.send(exchange.Request(cid=cid))
    await trio.testing.wait_all_tasks_blocked()
    return frames


def hold_big(node: SwarmNode) -> list[Cid]:
    signed = SWARM.publish(BIG_FILES, version=9, chunk_bytes=2 * WINDOW_BYTES)
    assert len(signed.manifest.chunks) > MAX_WAITING_PER_PEER + 1
    node.hold(signed, BIG_FILES)
    return [chunk.name for chunk in signed.manifest.chunks]


async def test_who_asks_for_more_than_its_share_hears_busy_and_others_do_not(tmp_path: Path) -> None:
    async with server(tmp_path, "greedy", "other") as (node, (greedy, other)):
        cids = hold_big(node)
        frames = await hold_slot(greedy, cids[0])
        share = MAX_WAITING_PER_PEER + 1
        await frames.send_together([exchange.Request(cid=cid) for cid in cids[1 : share + 1]])
        await trio.testing.wait_all_tasks_blocked()
        theirs = await open_frames(other, exchange.CHUNKS)
        await theirs.send(exchange.Request(cid=cids[0]))
        assert isinstance(await theirs.receive(exchange.ChunkAnswer), exchange.Chunk)
        answers = [await frames.receive(exchange.ChunkAnswer) for _ in range(share + 1)]
        assert [answer.cid for answer in answers if isinstance(answer, exchange.Busy)] == [cids[share]]


async def test_strangers_have_few_places_and_members_all_others(tmp_path: Path) -> None:
    async with server(tmp_path, "member", "stranger", "another") as (node, (member, *strangers)):
        cids = hold_big(node)
        for stranger in strangers:
            node.transport.distrust(stranger.peer_id)
        frames = [await hold_slot(stranger, cids[0]) for stranger in strangers]
        await frames[0].send_together([exchange.Request(cid=cid) for cid in cids[1 : STRANGER_UPLOADS + 1]])
        await trio.testing.wait_all_tasks_blocked()
        assert {refusal.budget for refusal in node.transport.refusals()} == {UPLOADS}
        theirs = await open_frames(member, exchange.CHUNKS)
        await theirs.send(exchange.Request(cid=cids[0]))
        assert isinstance(await theirs.receive(exchange.ChunkAnswer), exchange.Chunk)
        answers = [await frames[0].receive(exchange.ChunkAnswer) for _ in range(STRANGER_UPLOADS + 1)]
        assert sum(isinstance(answer, exchange.Busy) for answer in answers) == 2
        assert node.transport.refusals() == []


@pytest.mark.parametrize(
    ("trusted", "rate"), [(True, serving.MEMBER_QUESTIONS), (False, serving.STRANGER_QUESTIONS)], ids=str
)
async def test_questions_beyond_the_rate_are_answered_no_faster(
    tmp_path: Path, autojump_clock: MockClock, trusted: bool, rate: Rate
) -> None:
    async with server(tmp_path, "asker") as (node, (asker,)):
        if not trusted:
            node.transport.distrust(asker.peer_id)
        frames = await open_frames(asker, exchange.ASK)
        began = trio.current_time()
        for _ in range(int(rate.burst) + 50):
            await frames.send(exchange.AskGenesis())
            assert isinstance(await frames.receive(exchange.Answer), exchange.TellGenesis)
        assert trio.current_time() - began == pytest.approx(50 / rate.per_s, rel=0.05)
        assert {refusal.budget for refusal in node.transport.refusals()} == {serving.QUESTION_RATE}


async def test_requests_beyond_the_rate_are_answered_no_faster(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, "asker") as (node, (asker,)):
        node.transport.distrust(asker.peer_id)
        frames = await open_frames(asker, exchange.CHUNKS)
        rate, began = chunk_server.STRANGER_REQUESTS, trio.current_time()
        for _ in range(int(rate.burst) + 50):
            await frames.send(exchange.Request(cid=SIGNED.manifest.chunks[0].name))
            assert isinstance(await frames.receive(exchange.ChunkAnswer), exchange.Missing)
        assert trio.current_time() - began == pytest.approx(50 / rate.per_s, rel=0.05)


async def test_slow_readers_do_not_keep_others_waiting_for_long(tmp_path: Path, autojump_clock: MockClock) -> None:
    names = [f"slow{i}" for i in range(LANES)]
    async with server(tmp_path, "quick", *names) as (node, (quick, *slow)):
        (cid, *_) = hold_big(node)
        for one in slow:
            await hold_slot(one, cid)
        frames = await hold_slot(quick, cid)
        with trio.move_on_after(0) as time_limit:
            await frames.receive(exchange.ChunkAnswer)
        assert time_limit.cancelled_caught, "every lane is taken"
        await trio.sleep(UNKNOWN_STALL_S + 0.1)
        node.serving.tick()
        assert isinstance(await frames.receive(exchange.ChunkAnswer), exchange.Chunk)


async def test_when_a_peer_leaves_its_requests_go_with_it(tmp_path: Path) -> None:
    names = [f"slow{i}" for i in range(LANES)]
    async with server(tmp_path, "late", *names) as (node, (late, *slow)):
        (cid, second, *_) = hold_big(node)
        for one in slow:
            frames = await hold_slot(one, cid)
            await frames.send(exchange.Request(cid=second))
        theirs = await hold_slot(late, cid)
        node.transport.network.cut(node.peer, slow[0].peer_id)
        assert isinstance(await theirs.receive(exchange.ChunkAnswer), exchange.Chunk)
        for one in slow[1:]:
            node.transport.network.cut(node.peer, one.peer_id)
        await trio.testing.wait_all_tasks_blocked()
        assert not node.serving._chunks._outlets
        assert not node.serving._chunks._uploads.waiting
        assert not node.serving._chunks._uploads._sending


async def test_an_upload_that_is_not_taken_is_broken_off(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, "frozen") as (node, (frozen,)):
        (cid, *_) = hold_big(node)
        frames = await hold_slot(frozen, cid)
        await trio.sleep(chunk_server.UPLOAD_TIMEOUT_S + 1)
        with pytest.raises(StreamBroken):
            await frames.receive(exchange.ChunkAnswer)
        assert not node.serving._chunks._uploads._sending
        assert not node.serving.served


# Those who do not keep to the protocol.


async def test_the_streams_of_one_peer_are_bounded_and_those_of_others_are_not_touched(tmp_path: Path) -> None:
    async with server(tmp_path, "greedy", "other") as (_, (greedy, other)):
        streams = [await open_frames(greedy, exchange.ASK) for _ in range(serving.MAX_STREAMS_PER_PEER)]
        await trio.testing.wait_all_tasks_blocked()
        one_more = await open_frames(greedy, exchange.ASK)
        with pytest.raises(StreamBroken):
            await one_more.receive(exchange.Answer)
        for frames in (streams[0], await open_frames(other, exchange.ASK)):
            await frames.send(exchange.AskNewest())
            assert await frames.receive(exchange.Answer) == exchange.TellNewest()
        await streams[1].stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        again = await open_frames(greedy, exchange.ASK)
        await again.send(exchange.AskNewest())
        assert await again.receive(exchange.Answer) == exchange.TellNewest()


RUBBISH = {
    "no message": (exchange.ASK, b"\xc1", Fault.MALFORMED),
    "a message of another protocol": (exchange.ASK, encode(exchange.Want(manifest=bytes(32))), Fault.MALFORMED),
    "a want without a manifest": (exchange.EXCHANGE, encode(exchange.AskNewest()), Fault.MALFORMED),
    "no content id": (exchange.CHUNKS, encode(exchange.Request(cid=bytes(36))), Fault.MALFORMED),
    "more than a request": (exchange.CHUNKS, bytes(70_000), Fault.OVERSIZED),
}


@pytest.mark.parametrize(("protocol", "body", "fault"), RUBBISH.values(), ids=RUBBISH.keys())
async def test_rubbish_is_reported_and_ends_that_stream_alone(
    tmp_path: Path, protocol: str, body: bytes, fault: Fault
) -> None:
    async with server(tmp_path, "rubbish") as (node, (peer,)):
        good, bad = await open_frames(peer, exchange.ASK), await open_frames(peer, protocol)
        await bad.send_bytes(body)
        with pytest.raises(StreamBroken):
            await bad.receive_bytes()
        assert node.faults == [(peer.peer_id, fault)]
        await good.send(exchange.AskNewest())
        assert await good.receive(exchange.Answer) == exchange.TellNewest()


async def test_rubbish_after_a_want_is_reported_too(tmp_path: Path) -> None:
    async with server(tmp_path, "rubbish") as (node, (peer,)):
        frames = await open_frames(peer, exchange.EXCHANGE)
        await frames.send(exchange.Want(manifest=SIGNED.hash))
        await frames.receive(exchange.ExchangeFrame)
        await frames.send_bytes(b"\xc1")
        with pytest.raises(StreamBroken):
            await frames.receive_bytes()
        assert node.faults == [(peer.peer_id, Fault.MALFORMED)]
