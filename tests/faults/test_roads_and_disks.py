"""Patches that fail, disks that are full or shared: the version in service stays until a whole one is here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks.network.founding import key_of
from benchmarks.network.payload import FILE_NAME
from protocol.core.digest import cid_of
from protocol.versions import exchange
from protocol.versions.chunking import Source
from swarm.libp2p import open_libp2p
from swarm.transport.framing import open_frames
from tests.faults.conftest import Figure
from tests.faults.stage import MIB, SOURCE, STRANGER, Player, Stage, open_stage
from tests.support.chunks import describe

NODE, OTHER = "one", "two"


async def behind(stage: Stage, node_kind: str = "honest") -> None:
    """Publish version 1 to all nodes, and write the next versions, each a small step further."""
    stage.write(1)
    for version in (2, 3, 4):
        stage.nudge(version, version - 1)
    await stage.troupe(NODE, kinds={NODE: node_kind})
    await stage.publish(1)
    await stage.complete(1, stage.players[NODE])


async def test_three_versions_behind_by_the_cheapest_road(tmp_path: Path, figure: Figure) -> None:
    async with open_stage(tmp_path) as stage:
        await behind(stage)
        await stage.players[NODE].leave()
        patches = [(await stage.publish(version, version - 1))["patches"][str(version - 1)] for version in (2, 3, 4)]
        node = await stage.start(NODE)
        await stage.introduce(node, stage.players[SOURCE])
        (done,) = await stage.complete(4, node)
        (status,) = await stage.check(node, service=4)
        assert done["patches"] == 3
        assert status["fetched"] <= sum(patches) < 8 * MIB
        assert not node.said("trouble")
        figure("bytes over the sum of patches", status["fetched"] / sum(patches), "1")
        figure("bytes over the full version, %", 100 * status["fetched"] / (8 * MIB))


async def test_three_versions_behind_when_nobody_has_what_lies_between(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await behind(stage)
        await stage.players[NODE].leave()
        for version in (2, 3, 4):
            await stage.publish(version, version - 1)
        await stage.players[SOURCE].say("evict", keep=[4])
        await stage.players[SOURCE].hear("evicted", num=3)
        node = await stage.start(NODE)
        await stage.introduce(node, stage.players[SOURCE])
        (done,) = await stage.complete(4, node)
        (status,) = await stage.check(node, service=4)
        assert done["patches"] == 0
        assert status["fetched"] <= 8 * MIB


async def test_a_patch_whose_base_is_lost_while_it_is_fetched(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        await behind(stage, "forgetful")
        await stage.publish(2, 1)
        node = stage.players[NODE]
        assert (await node.hear("evicted"))["num"] == 0, "it is pinned"
        assert (await node.hear("deleted"))["num"] == 1
        assert "is fetched in full, because a patch failed" in (await node.hear("trouble"))["text"]
        (done,) = await stage.complete(2, node)
        await stage.check(node, service=2)
        assert done["patches"] == 0


async def test_a_patch_that_makes_something_else_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """The learner signed the patch, but it was made from other files than those of its base."""
    async with open_stage(tmp_path) as stage:
        await behind(stage)
        published = await stage.publish(2, 1, pretend={1: 3})
        assert "1" in published["patches"]
        node = stage.players[NODE]
        told = await node.hear("trouble")
        assert "is fetched in full, because a patch failed: broken_promise: patch: makes another chunk" in told["text"]
        (done,) = await stage.complete(2, node)
        (status,) = await stage.check(node, service=2)
        assert (done["patches"], [one["complete"] for one in status["versions"]]) == (0, [True, True])
        assert not node.said("fault")  # the peer that sent it is not to blame


async def test_a_second_node_on_the_same_store_is_refused_and_the_first_goes_on(tmp_path: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.write(1, 1)
        _source, first = await stage.troupe(NODE)
        second = await stage.launch(OTHER, store=first.store)
        assert await second.process.wait() == 1
        assert second.last_words().strip() == (
            f"{first.store} is in use by process {first.process.pid}. "
            "Stop that process, or give this node a store of its own."
        )
        await stage.publish(1)
        await stage.complete(1, first)
        await stage.check(first, service=1)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system in memory with room for three and a half versions."""
    path = tmp_path / "disk"
    path.mkdir()
    try:
        _mount(path, "size=28m")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no file system can be mounted here: {error}")
    try:
        yield path
    finally:
        subprocess.run(["umount", path], check=True)


def _mount(path: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], check=True, capture_output=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
async def test_two_nodes_on_one_disk_that_is_full_for_one_of_them(tmp_path: Path, small_disk: Path) -> None:
    async with open_stage(tmp_path) as stage:
        stage.write(1)
        stage.write(2)
        source, *_ = await stage.troupe()
        nodes = [await stage.start(name, store=small_disk / name) for name in (NODE, OTHER)]
        await stage.introduce(nodes[0], source)
        await stage.introduce(nodes[1], source, nodes[0])
        await stage.publish(1)
        await stage.complete(1, *nodes)
        await stage.publish(2)
        lucky = await source.until(
            "one with version 2", lambda: next((n for n in nodes if n.said("complete", version=2)), None)
        )
        (unlucky,) = [node for node in nodes if node is not lucky]
        told = await unlucky.until(
            "no room", lambda: [one for one in unlucky.said("trouble") if "No room" in one["text"]]
        )
        assert "The active version stays in use" in told[-1]["text"]
        await stage.check(lucky, service=2)
        (status,) = await stage.check(unlucky, service=1)
        assert [one["version"] for one in status["versions"] if one["complete"]] == [1]

        await ask_for_a_chunk(unlucky, stage.models[1])  # the old version is still served
        subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
        await stage.complete(2, unlucky)
        await stage.check(unlucky, lucky, service=2)


async def ask_for_a_chunk(player: Player, model: Path) -> None:
    """Dial a node as a stranger, and ask for the first chunk of a model."""
    table = describe([Source(name=FILE_NAME, size=(model / FILE_NAME).stat().st_size, read=partial(_read, model))])
    wanted = table.chunks[0]
    async with open_libp2p(key_of(STRANGER).seed, []) as transport:
        peer = await transport.dial(player.said("ready")[0]["addresses"])
        stream = await transport.open_stream(peer, exchange.CHUNKS)
        async with open_frames(stream, exchange.MAX_CHUNK_FRAME_BYTES) as frames:
            await frames.send(exchange.Request(cid=wanted.cid))
            answer = await frames.receive(exchange.ChunkAnswer)
    assert isinstance(answer, exchange.Chunk)
    assert cid_of(answer.data) == wanted.cid


def _read(model: Path, offset: int, size: int) -> bytes:
    return (model / FILE_NAME).read_bytes()[offset : offset + size]
