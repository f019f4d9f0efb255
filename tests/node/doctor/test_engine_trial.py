"""Whether an engine is tried, and with what: the engine of tests, on a version that a node has here."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.config.node_config import DrillSection, EngineSection, NodeConfig
from node.doctor.engine_trial import NO_VERSION, try_engine
from node.doctor.findings import NotKnown
from node.state.status_file import NodeStatus, StatusFile
from swarm.store import ChunkStore
from tests.support.store_fixture import chunk_data, small_model, small_swarm

SWARM = small_swarm()
FAKE = NodeConfig(engine=EngineSection(kind="fake"), testing=DrillSection(fake_token_s=0.001))


def home_with_version(root: Path, *, is_whole: bool = True) -> Path:
    files = small_model(1)
    signed = SWARM.publish(files)
    with ChunkStore.open(root / "store", SWARM.authority) as store:
        store.remember_genesis(SWARM.genesis)
        store.begin(signed)
        for index in range(len(signed.manifest.chunks) if is_whole else 1):
            store.put(signed.hash, index, chunk_data(signed, files, index))
        if is_whole:
            store.finish(signed.hash)
    return root


async def test_a_version_that_is_here_is_measured(tmp_path: Path) -> None:
    found = await try_engine(FAKE, [tmp_path / "nobody", home_with_version(tmp_path / "node-1")])
    assert found == pytest.approx(64_000, rel=0.01), "64 completions at a time, a token of each in a millisecond"


@pytest.mark.parametrize("is_there", [True, False])
async def test_without_a_whole_version_nothing_is_started(tmp_path: Path, is_there: bool) -> None:
    homes = [home_with_version(tmp_path, is_whole=False)] if is_there else []
    assert await try_engine(FAKE, homes) == NotKnown(why=NO_VERSION)


async def test_a_node_that_runs_keeps_the_machine(tmp_path: Path) -> None:
    StatusFile(home_with_version(tmp_path)).show(NodeStatus(doing="at work", limits={}))
    found = await try_engine(FAKE, [tmp_path])
    assert found == NotKnown(why="a node is at work here: `volery status` says how it does")


async def test_an_engine_that_fails_says_why(tmp_path: Path) -> None:
    home = home_with_version(tmp_path)
    [config] = (home / "store" / "versions").glob("*/config.json")
    config.unlink()
    found = await try_engine(FAKE, [home])
    assert isinstance(found, NotKnown)
    assert found.why.startswith("the engine failed: ")
