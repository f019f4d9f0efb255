"""Obtain versions by the cheapest route, and in full where that fails."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from protocol.core.ids import ManifestHash
from protocol.versions.manifest import SignedManifest
from swarm.testing.memory_transport import MemoryNetwork, Transfer
from swarm.versions.follower import Arrival
from tests.support import swarm_fixture as swarming
from tests.support.store_fixture import fill, model_files, nudged, patch_between, put_patch, small_model, small_swarm
from tests.support.swarm_fixture import SwarmNode, announce_manifest, open_node

inline_threads = pytest.fixture(autouse=True)(swarming.inline_threads)

SWARM = small_swarm()
FILES = [small_model(1)]
for _ in range(4):
    FILES.append(nudged(FILES[-1]))
"""Files of five versions; each differs from the one before in a few bytes."""


def signed_version(
    number: int, *before: SignedManifest, patches: Mapping[ManifestHash, bytes] | None = None
) -> SignedManifest:
    """Version `number`, offering patches from these versions (whose files are FILES of their number)."""
    offered = {base.hash: patch_between(FILES[base.version.version], FILES[number]) for base in before}
    return SWARM.publish(FILES[number], version=number, patches=offered if patches is None else patches)


def patch_bytes(signed: SignedManifest, base: SignedManifest) -> int:
    return next(patch.size for patch in signed.manifest.patches if patch.base == base.hash)


class World:
    """A learner, and one node that follows it."""

    def __init__(self, learner: SwarmNode, node: SwarmNode) -> None:
        self.learner, self.node = learner, node

    def hold(self, signed: SignedManifest, patches: Mapping[int, bytes] | None = None) -> None:
        """Let the learner have a version with its patches, but say nothing of it."""
        files = FILES[signed.version.version]
        fill(self.learner.store, signed, files)
        for number, patch in enumerate(signed.manifest.patches):
            base = next(held for held in self.learner.store.versions() if held.hash == patch.base)
            made = patch_between(FILES[base.version.version], files)
            put_patch(self.learner.store, signed, number, made if patches is None else patches[number])

    async def announce(self, signed: SignedManifest) -> Arrival:
        """Announce what the learner has, and wait for it at the node."""
        raw = announce_manifest(SWARM, signed)
        knowledge = self.learner.serving.knowledge
        self.learner.serving.knowledge = type(knowledge)(genesis=SWARM.genesis, newest=lambda: raw, peers=lambda: [])
        arrival = await self.node.arrival_of(signed)
        assert model_files(self.node.store.directory(signed.hash)) == FILES[signed.version.version]
        return arrival

    async def publish(self, signed: SignedManifest) -> Arrival:
        self.hold(signed)
        return await self.announce(signed)


@pytest.fixture
async def world(nursery: trio.Nursery, tmp_path: Path) -> World:
    return await make_world(nursery, tmp_path)


async def make_world(nursery: trio.Nursery, root: Path, *, quota_bytes: int | None = None) -> World:
    """A world whose node's store has this quota."""
    network = MemoryNetwork()

    async def present(name: str, follows: bool, quota: int | None, *, task_status: trio.TaskStatus[SwarmNode]) -> None:
        async with open_node(network, SWARM, root, name, fetches=follows, follows=follows, quota_bytes=quota) as node:
            task_status.started(node)
            await trio.sleep_forever()

    learner = await nursery.start(present, "learner", False, None)
    node = await nursery.start(present, "node", True, quota_bytes)
    await node.dial(learner)
    return World(learner, node)


async def test_a_patch_from_the_version_that_is_held(world: World, autojump_clock: MockClock) -> None:
    first = signed_version(0)
    arrival = await world.publish(first)
    assert (arrival.obtained.num_patches, arrival.obtained.patch_bytes, arrival.obtained.apply_s) == (0, 0, 0.0)
    second = signed_version(1, first)
    arrival = await world.publish(second)
    assert arrival.obtained.fetched.by_peer == {world.learner.peer: patch_bytes(second, first)}
    assert (arrival.obtained.num_patches, arrival.obtained.patch_bytes) == (1, patch_bytes(second, first))
    givers = arrival.obtained.fetched.givers
    assert givers == dict.fromkeys(second.manifest.patches[0].chunks, world.learner.peer), (
        "rebuilt chunks must not be fetched"
    )
    assert (world.node.faults, world.node.troubles) == ([], [])
    bitmap = world.node.store.have_bitmap(second.hash)
    assert int.from_bytes(bitmap, "little").bit_count() == len(second.manifest.chunks), "all can be served"


async def test_several_versions_behind_a_chain_of_patches(world: World, autojump_clock: MockClock) -> None:
    versions = [signed_version(0)]
    await world.publish(versions[0])
    for number in (1, 2, 3):
        versions.append(signed_version(number, versions[-1]))
        world.hold(versions[-1])
    arrival = await world.announce(versions[3])
    chain = sum(patch_bytes(later, earlier) for earlier, later in pairwise(versions))
    assert (arrival.obtained.num_patches, arrival.obtained.patch_bytes) == (3, chain)
    assert (
        sum(arrival.obtained.fetched.by_peer.values())
        == chain
        < sum(chunk.size for chunk in versions[3].manifest.chunks if chunk not in versions[0].manifest.chunks)
    )
    assert all(world.node.store.is_complete(version.hash) for version in versions)
    givers = arrival.obtained.fetched.givers
    assert givers == dict.fromkeys(versions[3].manifest.patches[0].chunks, world.learner.peer), (
        "only the last patch must be fetched"
    )


async def test_whoever_clears_up_meanwhile_takes_away_nothing_that_leads_on(
    world: World, autojump_clock: MockClock
) -> None:
    """A node clears up whenever it has installed a version, which may be while it fetches the next."""
    versions = [signed_version(0)]
    await world.publish(versions[0])
    for number in (1, 2, 3):
        versions.append(signed_version(number, versions[-1]))
        world.hold(versions[-1])

    async def clear_up(transfer: Transfer) -> bytes:
        if versions[3].hash in {one.hash for one in world.node.store.versions()}:  # it is being fetched
            world.node.store.evict([])
        return transfer.data

    world.node.transport.network.set_fault(world.learner.peer, world.node.peer, clear_up)
    arrival = await world.announce(versions[3])
    assert arrival.obtained.num_patches == 3
    assert world.node.troubles == []


async def test_from_the_anchor_where_that_is_shorter_than_the_chain(world: World, autojump_clock: MockClock) -> None:
    first = signed_version(0)
    await world.publish(first)
    second = signed_version(1, first)
    third = signed_version(2, second, first)
    for version in (second, third):
        world.hold(version)
    arrival = await world.announce(third)
    assert (arrival.obtained.num_patches, arrival.obtained.patch_bytes) == (1, patch_bytes(third, first))
    assert not world.node.store.is_complete(second.hash)


async def test_without_the_base_in_full(world: World, autojump_clock: MockClock) -> None:
    world.hold(first := signed_version(0))
    second = signed_version(1, first)
    arrival = await world.publish(second)
    assert (arrival.obtained.num_patches, world.node.troubles) == (0, [])


async def test_a_patch_that_is_wrong_costs_a_version_nothing_but_time(world: World, autojump_clock: MockClock) -> None:
    await world.publish(first := signed_version(0))
    wrong = patch_between(FILES[0], FILES[2])
    second = signed_version(1, patches={first.hash: wrong})
    world.hold(second, {0: wrong})
    arrival = await world.announce(second)
    assert (arrival.obtained.num_patches, arrival.obtained.patch_bytes) == (0, len(wrong))
    assert set(second.manifest.patches[0].chunks) < arrival.obtained.fetched.givers.keys(), "the wrong one and the rest"
    assert len(world.node.troubles) == 1
    assert "in full" in world.node.troubles[0]


async def test_a_patch_that_nobody_holds_is_not_waited_for(world: World, autojump_clock: MockClock) -> None:
    await world.publish(first := signed_version(0))
    second = signed_version(1, first)
    fill(world.learner.store, second, FILES[1])
    arrival = await world.announce(second)
    assert arrival.obtained.patch_bytes == 0
    assert "no neighbour that we may ask holds" in world.node.troubles[0]


async def test_where_the_quota_has_no_room_for_a_patch_the_full_road_is_taken(
    nursery: trio.Nursery, tmp_path: Path, autojump_clock: MockClock
) -> None:
    size = signed_version(0).manifest.total_bytes
    world = await make_world(nursery, tmp_path, quota_bytes=2 * size)
    await world.publish(first := signed_version(0))
    arrival = await world.publish(signed_version(1, first))
    assert arrival.obtained.num_patches == 0
    (trouble,) = world.node.troubles
    assert "is fetched in full" in trouble
    assert "Set [store] quota_gb to" in trouble


async def test_making_room_spares_what_the_next_patch_starts_from(
    nursery: trio.Nursery, tmp_path: Path, autojump_clock: MockClock
) -> None:
    world = await make_world(nursery, tmp_path, quota_bytes=signed_version(0).manifest.total_bytes * 13 // 4)
    anchor = signed_version(0)
    versions = [anchor]
    await world.publish(anchor)
    for number in (1, 2, 3, 4):
        bases = versions[-1:] if number == 1 else [versions[-1], anchor]
        versions.append(signed_version(number, *bases))
        arrival = await world.publish(versions[-1])
        assert arrival.obtained.num_patches == 1
    held = [version.version.version for version in world.node.store.versions()]
    assert held == [0, 3, 4], "the anchor, and the last two"
    assert world.node.troubles == []
