"""Following: from an announcement to a complete version, whatever is lost, forged, late or cut off on the way."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from protocol.core.errors import Fault, PeerError
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.core.limits import MANIFEST_PIECE_BYTES, MAX_MANIFEST_BYTES, MAX_REQUEST_BYTES
from protocol.versions import exchange
from protocol.versions.announcement import Announcement, announce, topic_of
from protocol.versions.manifest import SignedManifest
from protocol.versions.manifest_pieces import MAX_ENVELOPE_BYTES
from swarm.store import ChunkStore
from swarm.testing.memory_transport import MemoryNetwork, Transfer
from swarm.transport.framing import FrameStream
from swarm.transport.interface import Stream, StreamRefused
from swarm.versions.follower import ASK_EVERY_S, ASK_SELDOM_S, LEARN_S
from swarm.versions.manifest_inquiry import MANIFEST_TIMEOUT_S
from swarm.versions.manifest_search import ask
from tests.support import swarm_fixture as swarming
from tests.support.store_fixture import chunk_data, fill, model_files, small_model, small_swarm
from tests.support.swarm_fixture import SwarmNode, announce_manifest, key_of, open_node, peer_of

inline_threads = pytest.fixture(autouse=True)(swarming.inline_threads)

SWARM = small_swarm()
TOPIC = topic_of(SWARM.authority.swarm)


def version(number: int, *, incarnation: int = 1) -> tuple[SignedManifest, dict[str, bytes]]:
    files = small_model(10 * number)
    return SWARM.publish(files, version=number, incarnation=incarnation), files


async def publish(node: SwarmNode, signed: SignedManifest, files: dict[str, bytes], *, gossip: bool = True) -> None:
    """Be the learner: hold a version, say so to whoever asks, and broadcast it."""
    node.hold(signed, files)
    raw = announce_manifest(SWARM, signed)
    node.serving.tell_gained(signed.hash)
    node.serving.knowledge = type(node.serving.knowledge)(genesis=SWARM.genesis, newest=lambda: raw, peers=lambda: [])
    if gossip:
        await node.transport.publish(TOPIC, raw)


class Swarm:
    """A learner that serves, and followers: each in a task of its own until the test ends."""

    def __init__(self, nursery: trio.Nursery, root: Path) -> None:
        self.network = MemoryNetwork()
        self._nursery, self._root = nursery, root
        self._piece_bytes = MANIFEST_PIECE_BYTES

    async def learner(self) -> SwarmNode:
        return await self._nursery.start(self._present, "learner", False, None)

    async def follower(self, name: str, *, quota_bytes: int | None = None) -> SwarmNode:
        return await self._nursery.start(self._present, name, True, quota_bytes)

    def in_pieces_of(self, piece_bytes: int) -> None:
        """Manifests travel so from now on."""
        self._piece_bytes = piece_bytes

    async def _present(
        self, name: str, follows: bool, quota_bytes: int | None, *, task_status: trio.TaskStatus[SwarmNode]
    ) -> None:
        async with open_node(
            self.network,
            SWARM,
            self._root,
            name,
            fetches=follows,
            follows=follows,
            quota_bytes=quota_bytes,
            piece_bytes=self._piece_bytes,
        ) as node:
            task_status.started(node)
            await trio.sleep_forever()


@pytest.fixture
async def swarm(nursery: trio.Nursery, tmp_path: Path) -> Swarm:
    return Swarm(nursery, tmp_path)


# Hearing of it.


async def test_what_is_announced_is_fetched_remembered_and_handed_over(swarm: Swarm, autojump_clock: MockClock) -> None:
    learner, node = await swarm.learner(), await swarm.follower("node")
    await node.dial(learner)
    await trio.testing.wait_all_tasks_blocked()
    signed, files = version(1)
    await publish(learner, signed, files)
    arrival = await node.arrival_of(signed)
    assert arrival.obtained.fetched.by_peer == {learner.peer: sum(chunk.size for chunk in signed.manifest.chunks)}
    assert model_files(node.store.directory(signed.hash)) == files
    assert node.store.newest() == node.following.newest == announce_manifest(SWARM, signed)
    assert (node.faults, node.troubles) == ([], [])


async def test_versions_are_handed_over_in_order_and_only_once(swarm: Swarm, autojump_clock: MockClock) -> None:
    learner, node = await swarm.learner(), await swarm.follower("node")
    await node.dial(learner)
    for number in range(1, 5):
        signed, files = version(number)
        for _ in range(3):
            await publish(learner, signed, files)
        await node.arrival_of(signed)
    await trio.sleep(5 * ASK_EVERY_S)
    assert [arrival.signed.version.version for arrival in node.arrivals] == [1, 2, 3, 4]


async def test_who_connects_late_asks_and_is_told(swarm: Swarm, autojump_clock: MockClock) -> None:
    learner, node = await swarm.learner(), await swarm.follower("late")
    signed, files = version(7)
    await publish(learner, signed, files)
    await node.dial(learner)
    assert (await node.arrival_of(signed)).signed.version == PolicyVersion(1, 7)
    assert trio.current_time() < ASK_EVERY_S, "it did not wait for the next announcement"


async def test_gossip_that_was_lost_is_repaired_by_asking_now_and_then(swarm: Swarm, autojump_clock: MockClock) -> None:
    learner, node = await swarm.learner(), await swarm.follower("node")
    await node.dial(learner)
    await trio.sleep(10)
    signed, files = version(1)
    await publish(learner, signed, files, gossip=False)
    await node.arrival_of(signed)
    assert trio.current_time() < 10 + ASK_SELDOM_S + ASK_EVERY_S


async def test_where_nothing_is_new_questions_become_rare(swarm: Swarm, autojump_clock: MockClock) -> None:
    learner, node = await swarm.learner(), await swarm.follower("node")
    asked: list[float] = []

    def newest() -> bytes:
        asked.append(trio.current_time())
        return raw

    signed, files = version(1)
    raw = announce_manifest(SWARM, signed)
    learner.hold(signed, files)
    learner.serving.knowledge = type(learner.serving.knowledge)(genesis=SWARM.genesis, newest=newest, peers=lambda: [])
    await node.dial(learner)
    await node.arrival_of(signed)
    await trio.sleep(100 * ASK_EVERY_S)
    pauses = [after - before for before, after in pairwise(asked[1:])]
    assert pauses[:3] == pytest.approx([2 * ASK_EVERY_S, 4 * ASK_EVERY_S, ASK_SELDOM_S], rel=0.01)
    assert all(pause == pytest.approx(ASK_SELDOM_S, rel=0.01) for pause in pauses[3:])


async def test_what_the_learner_repeats_is_not_passed_on(swarm: Swarm, autojump_clock: MockClock) -> None:
    learner, node, beyond = await swarm.learner(), await swarm.follower("node"), await swarm.follower("beyond")
    heard = await beyond.transport.subscribe(TOPIC, lambda broadcast: True)
    await node.dial(learner)
    await beyond.dial(node)
    await trio.testing.wait_all_tasks_blocked()
    first, files = version(1)
    second, more = version(2)
    for _ in range(3):
        await publish(learner, first, files)
        await trio.sleep(1)
    await publish(learner, second, more)
    await beyond.arrival_of(second)
    announced = [heard.receive_nowait().data for _ in range(heard.statistics().current_buffer_used)]
    assert announced == [announce_manifest(SWARM, signed) for signed in (first, second)]


async def test_along_a_line_everybody_gets_the_version_and_nobody_sees_trouble(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    learner = await swarm.learner()
    line = [await swarm.follower(f"n{i}") for i in range(4)]
    for node, before in zip(line, [learner, *line], strict=False):
        await node.dial(before)
    await trio.testing.wait_all_tasks_blocked()
    signed, files = version(1)
    await publish(learner, signed, files)
    for node, before in zip(line, [learner, *line], strict=False):
        assert (await node.arrival_of(signed)).obtained.fetched.by_peer.keys() == {before.peer}
        assert (node.faults, node.troubles) == ([], [])


async def test_who_is_three_versions_behind_goes_to_the_newest(swarm: Swarm, autojump_clock: MockClock) -> None:
    learner, node = await swarm.learner(), await swarm.follower("node")
    await node.dial(learner)
    first, files = version(1)
    await publish(learner, first, files)
    await node.arrival_of(first)
    swarm.network.cut(learner.peer, node.peer)
    for number in (2, 3, 4):
        await publish(learner, *version(number))
    await node.dial(learner)
    await node.arrival_of(version(4)[0])
    assert [arrival.signed.version.version for arrival in node.arrivals] == [1, 4]


async def test_versions_that_come_faster_than_a_fetch_starve_nobody(swarm: Swarm, autojump_clock: MockClock) -> None:
    async def slow(transfer: Transfer) -> bytes:
        await trio.sleep(0.5)
        return transfer.data

    learner, node = await swarm.learner(), await swarm.follower("slow")
    swarm.network.set_fault(learner.peer, node.peer, slow)
    await node.dial(learner)
    for number in range(1, 11):
        await publish(learner, *version(number))
        await trio.sleep(1)
    await node.arrival_of(version(10)[0])
    arrived = [arrival.signed.version.version for arrival in node.arrivals]
    assert arrived == sorted(arrived)
    assert 2 <= len(arrived) < 10


async def test_a_manifest_of_many_pieces_goes_along_a_line_like_any_other(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    swarm.in_pieces_of(100)
    learner = await swarm.learner()
    line = [await swarm.follower(f"n{i}") for i in range(3)]
    for node, before in zip(line, [learner, *line], strict=False):
        await node.dial(before)
    await trio.testing.wait_all_tasks_blocked()
    for number in (1, 2):
        signed, files = version(number)
        assert len(signed.raw) > 10 * 100
        await publish(learner, signed, files)
        for node in line:
            await node.arrival_of(signed)
            assert node.store.manifest_bytes(signed.hash) == signed.raw
            assert (node.faults, node.troubles) == ([], [])


async def test_a_manifest_larger_than_we_take_is_the_learner_s_fault_and_asked_of_nobody(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    learner, node = await swarm.learner(), await swarm.follower("node")
    signed, files = version(1)
    learner.hold(signed, files)
    too_large = Announcement(
        version=signed.version,
        manifest=signed.hash,
        manifest_bytes=MAX_ENVELOPE_BYTES + 1,
        total_bytes=1,
        certificate=SWARM.certificate,
    )
    await listen(node, learner, announce(SWARM.learner, SWARM.authority, too_large))
    (trouble,) = node.troubles
    assert f"its manifest has {MAX_ENVELOPE_BYTES + 1} bytes" in trouble
    assert (node.faults, node.arrivals) == ([], [])


# Whom not to believe.


async def listen(node: SwarmNode, source: SwarmNode, raw: bytes) -> None:
    """Let `node` hear `raw` from `source` by gossip and by asking, and give it time to act on it."""
    await node.dial(source)
    await trio.testing.wait_all_tasks_blocked()
    await source.transport.publish(TOPIC, raw)
    knowledge = source.serving.knowledge
    source.serving.knowledge = type(knowledge)(genesis=b"", newest=lambda: raw, peers=lambda: [])
    await trio.sleep(3 * ASK_EVERY_S)


def forged() -> tuple[bytes, Fault]:
    return announce_manifest(SWARM, version(9)[0], by=key_of("forger")), Fault.UNAUTHORISED


def tampered() -> tuple[bytes, Fault]:
    raw = announce_manifest(SWARM, version(9)[0])
    return raw[:-1] + bytes([raw[-1] ^ 1]), Fault.BAD_SIGNATURE


def of_another_swarm() -> tuple[bytes, Fault]:
    other = small_swarm("another")
    return announce_manifest(other, other.publish(small_model(9), version=9)), Fault.WRONG_SWARM


def of_another_kind() -> tuple[bytes, Fault]:
    return SWARM.certificate, Fault.WRONG_KIND


def rubbish() -> tuple[bytes, Fault]:
    return b"rubbish", Fault.MALFORMED


@pytest.mark.parametrize("make", [forged, tampered, of_another_swarm, of_another_kind, rubbish])
async def test_what_the_learner_did_not_sign_is_reported_and_neither_believed_nor_passed_on(
    swarm: Swarm, autojump_clock: MockClock, make: Callable[[], tuple[bytes, Fault]]
) -> None:
    raw, fault = make()
    liar, node, beyond = await swarm.learner(), await swarm.follower("node"), await swarm.follower("beyond")
    await beyond.dial(node)
    await listen(node, liar, raw)
    assert set(node.faults) == {(liar.peer, fault)}
    assert len(node.faults) >= 2, "from gossip and from the answer"
    assert node.following.newest == b""
    assert node.store.newest() is None
    assert (beyond.faults, beyond.following.newest) == ([], b"")


async def test_an_old_announcement_is_nobody_s_fault_and_changes_nothing(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    learner, node, beyond = await swarm.learner(), await swarm.follower("node"), await swarm.follower("beyond")
    await node.dial(learner)
    await beyond.dial(node)
    old, new = version(1), version(2)
    for signed, files in (old, new):
        await publish(learner, signed, files)
        await beyond.arrival_of(signed)
    carried = beyond.transport.traffic()[node.peer].received
    replayer = await swarm.follower("replayer")
    await replayer.dial(node)
    await replayer.transport.publish(TOPIC, announce_manifest(SWARM, old[0]))
    await trio.testing.wait_all_tasks_blocked()
    assert node.following.newest == announce_manifest(SWARM, new[0])
    assert node.faults == []
    assert beyond.transport.traffic()[node.peer].received == carried, "nor is it passed on"


async def test_two_manifests_under_one_name_are_shown_and_the_first_stays(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    learner, node = await swarm.learner(), await swarm.follower("node")
    await node.dial(learner)
    signed, files = version(1)
    await publish(learner, signed, files)
    await node.arrival_of(signed)
    other = SWARM.publish(small_model(99), version=1)
    for _ in range(3):
        await publish(learner, other, small_model(99))
    await trio.sleep(3 * ASK_EVERY_S)
    (trouble,) = node.troubles
    assert signed.hash.hex()[:8] in trouble
    assert other.hash.hex()[:8] in trouble
    assert [arrival.signed.hash for arrival in node.arrivals] == [signed.hash]
    assert not node.store.is_complete(other.hash)


async def test_a_manifest_of_another_version_than_announced_is_refused_and_its_bearer_not_blamed(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    learner, node = await swarm.learner(), await swarm.follower("node")
    signed, files = version(1)
    learner.hold(signed, files)
    renamed = replace(signed, manifest=version(5)[0].manifest)
    await listen(node, learner, announce_manifest(SWARM, renamed))
    assert node.arrivals == []
    assert node.faults == []
    assert "announced manifest is that of 1.1" in node.troubles[0]


async def test_a_peer_that_answers_with_another_manifest_is_reported_and_another_asked(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    learner, node, liar = await swarm.learner(), await swarm.follower("node"), await swarm.follower("liar")
    signed, files = version(1)
    other = version(2)[0]
    liar.store.manifest_bytes = lambda manifest: other.raw  # type: ignore[method-assign]
    await node.dial(liar)
    await trio.testing.wait_all_tasks_blocked()
    await liar.transport.publish(TOPIC, announce_manifest(SWARM, signed))
    await trio.sleep(1)
    assert set(node.faults) == {(liar.peer, Fault.BROKEN_PROMISE)}
    await publish(learner, signed, files, gossip=False)
    await node.dial(learner)
    await node.arrival_of(signed)


# A learner that restarts.


async def test_a_restarted_learner_preempts_what_is_in_flight(swarm: Swarm, autojump_clock: MockClock) -> None:
    async def frozen(transfer: Transfer) -> bytes:
        if transfer.protocol == exchange.CHUNKS:
            await trio.sleep_forever()
        return transfer.data

    learner, node = await swarm.learner(), await swarm.follower("node")
    swarm.network.set_fault(learner.peer, node.peer, frozen)
    await node.dial(learner)
    await publish(learner, *version(8))
    await trio.sleep(1)
    assert node.following.core.in_flight is not None
    swarm.network.set_fault(learner.peer, node.peer, None)
    again, files = version(5, incarnation=2)
    await publish(learner, again, files)
    await node.arrival_of(again)
    assert [arrival.signed.version for arrival in node.arrivals] == [PolicyVersion(2, 5)]
    assert node.following.core.in_flight is None


async def test_a_version_abandoned_in_its_last_moment_is_not_handed_over(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    learner, node = await swarm.learner(), await swarm.follower("node")
    old, again = version(8), version(5, incarnation=2)
    for signed, files in (old, again):
        learner.hold(signed, files)
    finish = node.store.finish

    def finish_late(manifest: ManifestHash) -> Path:
        directory = finish(manifest)
        if manifest == old[0].hash:  # by now it cannot be cancelled any more
            node.following._take(announce_manifest(SWARM, again[0]), learner.peer)
        return directory

    node.store.finish = finish_late  # type: ignore[method-assign]
    await listen(node, learner, announce_manifest(SWARM, old[0]))
    assert [arrival.signed.version for arrival in node.arrivals] == [PolicyVersion(2, 5)]
    assert node.following.core.in_flight is None


# A node that restarts.


async def test_a_partial_version_is_resumed_after_a_restart(tmp_path: Path, autojump_clock: MockClock) -> None:
    network = MemoryNetwork()
    signed, files = version(3)
    with ChunkStore.open(tmp_path / "node", SWARM.authority) as store:
        store.begin(signed)
        for index in range(0, len(signed.manifest.chunks), 2):
            store.put(signed.hash, index, chunk_data(signed, files, index))
        missing = sum(signed.manifest.chunks[index].size for index in store.missing(signed.hash))
        store.remember_newest(announce_manifest(SWARM, signed))
    async with (
        open_node(network, SWARM, tmp_path, "learner", fetches=False) as learner,
        open_node(network, SWARM, tmp_path, "node", follows=True) as node,
    ):
        learner.hold(signed, files)  # announces nothing: what is newest is remembered
        await node.dial(learner)
        arrival = await node.arrival_of(signed)
        assert arrival.obtained.fetched.by_peer == {learner.peer: missing}


@pytest.mark.parametrize("remembered", [True, False])
async def test_a_restarted_node_is_not_told_that_an_older_version_is_new(
    tmp_path: Path, autojump_clock: MockClock, remembered: bool
) -> None:
    network = MemoryNetwork()
    old, new = version(1), version(2)
    with ChunkStore.open(tmp_path / "node", SWARM.authority) as store:
        fill(store, *new)
        if remembered:
            store.remember_newest(announce_manifest(SWARM, new[0]))
    async with (
        open_node(network, SWARM, tmp_path, "learner", fetches=False) as learner,
        open_node(network, SWARM, tmp_path, "node", follows=True) as node,
    ):
        await node.dial(learner)
        await publish(learner, *old)
        await trio.sleep(3 * ASK_EVERY_S)
        assert node.arrivals == []
        assert not node.store.is_complete(old[0].hash)
        assert node.following.newest == (announce_manifest(SWARM, new[0]) if remembered else b"")
        await publish(learner, *new)
        await trio.sleep(3 * ASK_EVERY_S)
        assert node.following.newest == announce_manifest(SWARM, new[0])
        assert node.arrivals == [], "it is held already"


async def test_a_remembered_announcement_that_is_damaged_is_said_and_survived(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    network = MemoryNetwork()
    with ChunkStore.open(tmp_path / "node", SWARM.authority) as store:
        store.remember_newest(b"half a")
    async with (
        open_node(network, SWARM, tmp_path, "learner", fetches=False) as learner,
        open_node(network, SWARM, tmp_path, "node", follows=True) as node,
    ):
        await node.dial(learner)
        signed, files = version(1)
        await publish(learner, signed, files)
        await node.arrival_of(signed)
        assert "cannot be used" in node.troubles[0]


# What goes wrong on the way.


async def test_when_nobody_has_it_the_user_is_told_once_and_it_is_fetched_when_somebody_has(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    learner, node = await swarm.learner(), await swarm.follower("node")
    signed, files = version(1)
    await listen(node, learner, announce_manifest(SWARM, signed))
    await trio.sleep(60)
    (trouble,) = node.troubles
    assert "Version 1.1 could not be fetched" in trouble
    assert "manifest" in trouble
    learner.hold(signed, files)
    await node.arrival_of(signed)


async def test_each_attempt_at_the_newest_that_fails_is_told_with_its_version(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    learner, node = await swarm.learner(), await swarm.follower("node")
    failed: list[tuple[PolicyVersion, str]] = []
    node.following.on_failure = lambda version, reason: failed.append((version, reason))
    signed, files = version(1)
    await listen(node, learner, announce_manifest(SWARM, signed))
    await trio.sleep(120)
    assert len(failed) >= 2
    assert {version for version, _ in failed} == {signed.version}
    assert "manifest" in failed[0][1]
    learner.hold(signed, files)
    await node.arrival_of(signed)
    before = len(failed)
    await trio.sleep(120)
    assert len(failed) == before


async def test_a_version_that_everybody_has_dropped_is_left_for_the_newest(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    learner, node = await swarm.learner(), await swarm.follower("node")
    await node.dial(learner)
    old, files = version(1)

    async def slow(transfer: Transfer) -> bytes:
        await trio.sleep(0.3)
        return transfer.data

    swarm.network.set_fault(learner.peer, node.peer, slow)
    await publish(learner, old, files)
    await trio.sleep(2)
    assert 0 < len(node.store.missing(old.hash)) < len(old.manifest.chunks)
    new, files = version(2)
    await publish(learner, new, files)
    learner.store.evict(keep=[new.hash])
    await node.arrival_of(new)
    assert [arrival.signed.version.version for arrival in node.arrivals] == [2]
    assert node.troubles == [], "nobody is worse off"


async def test_a_full_disk_is_said_and_the_version_is_fetched_when_there_is_room(
    swarm: Swarm, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    learner, node = await swarm.learner(), await swarm.follower("node")
    signed, files = version(1)
    await publish(learner, signed, files)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        await node.dial(learner)
        await trio.sleep(10 * ASK_EVERY_S)
        (trouble,) = node.troubles
        assert "No room left" in trouble
        assert "The active version stays in use" in trouble
    await node.arrival_of(signed)


async def test_a_version_beyond_the_quota_is_refused_in_one_sentence_and_at_no_cost(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    first, files = version(1)
    quota = first.manifest.total_bytes * 3 // 2
    learner, node = await swarm.learner(), await swarm.follower("node", quota_bytes=quota)
    await publish(learner, first, files)
    await node.dial(learner)
    await node.arrival_of(first)
    node.store.pin(first.hash)  # as who is in service is
    second, files = version(2)
    await publish(learner, second, files)
    await trio.sleep(2 * ASK_EVERY_S)
    carried = node.transport.traffic()[learner.peer].received
    await trio.sleep(100 * ASK_EVERY_S)
    (trouble,) = node.troubles
    assert "Set [store] quota_gb to" in trouble
    assert "The active version stays in use" in trouble
    assert [held.hash for held in node.store.versions()] == [first.hash]
    asked = node.transport.traffic()[learner.peer].received - carried
    assert asked < 100 * (len(node.following.newest) + 200), (
        "only the newest announcement may be asked for, not its manifest"
    )

    node.store.unpin(first.hash)
    await node.arrival_of(second)
    assert [held.hash for held in node.store.versions()] == [second.hash]


async def test_under_a_quota_old_versions_make_room_for_new_ones(swarm: Swarm, autojump_clock: MockClock) -> None:
    quota = 2 * version(1)[0].manifest.total_bytes
    learner, node = await swarm.learner(), await swarm.follower("node", quota_bytes=quota)
    await node.dial(learner)
    for number in range(1, 6):
        signed, files = version(number)
        await publish(learner, signed, files)
        await node.arrival_of(signed)
        assert sum(held.total_bytes for held in node.store.versions()) <= quota
    assert [held.version.version for held in node.store.versions()] == [4, 5]
    assert node.troubles == []


async def test_a_frozen_peer_does_not_keep_others_from_being_asked(swarm: Swarm, autojump_clock: MockClock) -> None:
    async def frozen(transfer: Transfer) -> bytes:
        await trio.sleep_forever()
        return transfer.data

    ice, learner, node = await swarm.follower("ice"), await swarm.learner(), await swarm.follower("node")
    swarm.network.set_fault(ice.peer, node.peer, frozen)
    await node.dial(ice, learner)
    await trio.sleep(1)
    signed, files = version(1)
    await publish(learner, signed, files, gossip=False)
    await node.arrival_of(signed)
    assert trio.current_time() < 120
    assert node.faults == []


async def test_peers_that_never_answer_cost_a_second_each_before_a_manifest_comes(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    learner, node = await swarm.learner(), await swarm.follower("node")
    for name in ("one", "two", "three"):
        mute = await swarm.follower(name)
        mute.transport.handle(exchange.ASK, lambda stream: trio.sleep_forever())
        await node.dial(mute)
    await node.dial(learner)
    signed, files = version(1)
    await publish(learner, signed, files)
    assert (await node.arrival_of(signed)).seconds < 3 * MANIFEST_TIMEOUT_S + 1
    assert node.faults == []


async def test_a_manifest_on_the_way_to_a_cheaper_road_holds_nobody_up_for_ever(
    swarm: Swarm, autojump_clock: MockClock
) -> None:
    async def trickle(stream: Stream) -> None:
        frames = FrameStream(stream, MAX_REQUEST_BYTES)
        while await frames.receive(exchange.Question) is not None:
            await trio.sleep(10)
            await frames.send(exchange.TellManifest(manifest=bytes(100), total=MAX_MANIFEST_BYTES))

    swarm.in_pieces_of(100)
    liar, node = await swarm.learner(), await swarm.follower("node")
    liar.transport.handle(exchange.ASK, trickle)
    await node.dial(liar)
    began = trio.current_time()
    assert await node.following.obtaining.learn(version(1)[0].hash) is None
    assert trio.current_time() - began == LEARN_S


# Asking.


async def test_asking_a_peer_that_answers_nothing_times_out(swarm: Swarm, autojump_clock: MockClock) -> None:
    async def frozen(transfer: Transfer) -> bytes:
        await trio.sleep_forever()
        return transfer.data

    learner, node = await swarm.learner(), await swarm.follower("node")
    await node.dial(learner)
    swarm.network.set_fault(learner.peer, node.peer, frozen)
    with pytest.raises(trio.TooSlowError):
        await ask(node.transport, learner.peer, exchange.AskGenesis(), timeout_s=3)


async def test_asking_tells_apart_closing_rubbish_and_not_speaking(swarm: Swarm, autojump_clock: MockClock) -> None:
    learner, node = await swarm.learner(), await swarm.follower("node")
    await node.dial(learner)
    assert await ask(node.transport, learner.peer, exchange.AskNewest()) == exchange.TellNewest()

    async def close(stream: Stream) -> None:
        await stream.receive_some(100)

    async def talk_rubbish(stream: Stream) -> None:
        await stream.send_all(b"\0\0\0\1\xc1")
        await stream.receive_some(100)

    learner.transport.handle(exchange.ASK, close)
    assert await ask(node.transport, learner.peer, exchange.AskNewest()) is None
    learner.transport.handle(exchange.ASK, talk_rubbish)
    with pytest.raises(PeerError):
        await ask(node.transport, learner.peer, exchange.AskNewest())
    with pytest.raises(StreamRefused):
        await ask(node.transport, peer_of("a stranger"), exchange.AskNewest())
