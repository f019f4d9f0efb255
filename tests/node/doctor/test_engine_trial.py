"""Decide whether an engine is tried, and on which version: the tests' engine, on a version that a node has here."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest

from node.config.node_config import DrillSection, EngineSection, NodeConfig
from node.doctor.engine_trial import try_engine
from node.doctor.findings import EngineFailed, EngineSpeed, NotKnown
from node.doctor.stand_in import StandIn
from node.state.status_file import NodeStatus, StatusFile
from swarm.store import ChunkStore
from tests.node.learner_role.test_dry_run import QWEN3_4B, shapes
from tests.support.store_fixture import chunk_data, safetensors_file, small_model, small_swarm, tensor

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


HERE_NOT = NotKnown(why="the model's configuration could not be fetched")


def stand_in() -> StandIn:
    files = small_model(1)
    return StandIn(manifest=SWARM.publish(files).manifest, files={"config.json": files["config.json"]})


async def test_a_version_that_is_here_is_measured(tmp_path: Path) -> None:
    found = await try_engine(FAKE, [tmp_path / "nobody", home_with_version(tmp_path / "node-1")], HERE_NOT)
    assert isinstance(found, EngineSpeed)
    assert found.tokens_per_s == pytest.approx(64_000, rel=0.01), "64 completions, a token of each in a millisecond"
    assert not found.is_of_stand_in


@pytest.mark.parametrize("is_there", [True, False])
async def test_without_a_whole_version_another_model_stands_in(tmp_path: Path, is_there: bool) -> None:
    homes = [home_with_version(tmp_path, is_whole=False)] if is_there else []
    found = await try_engine(FAKE, homes, stand_in())
    assert isinstance(found, EngineSpeed)
    assert found.is_of_stand_in
    assert await try_engine(FAKE, homes, HERE_NOT) == HERE_NOT


async def test_nothing_of_it_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert isinstance(await try_engine(FAKE, [], stand_in()), EngineSpeed)
    assert list(tmp_path.iterdir()) == []


async def test_a_node_that_runs_keeps_the_machine(tmp_path: Path) -> None:
    StatusFile(home_with_version(tmp_path)).show(NodeStatus(doing="at work", limits={}))
    found = await try_engine(FAKE, [tmp_path], stand_in())
    assert found == NotKnown(why="a node is running here; `volery status` shows how it is doing")


async def test_an_engine_that_fails_says_why(tmp_path: Path) -> None:
    home = home_with_version(tmp_path)
    [config] = (home / "store" / "versions").glob("*/config.json")
    config.unlink()
    found = await try_engine(FAKE, [home], HERE_NOT)
    assert isinstance(found, EngineFailed)
    assert found.why.startswith("the engine failed: ")


async def test_vllm_is_not_waited_for() -> None:
    config = NodeConfig(engine=EngineSection(kind="vllm"))
    found = await try_engine(config, [], stand_in())
    assert isinstance(found, NotKnown)
    assert "longer than half a minute" in found.why


TINY = {
    **{key: value for key, value in QWEN3_4B.items() if key != "torch_dtype"}, "hidden_size": 64, "head_dim": 16,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 256, "max_position_embeddings": 256, "dtype": "bfloat16",
}  # fmt: skip


@pytest.mark.rest
async def test_a_real_engine_takes_what_stands_in_for_a_model() -> None:
    named = {name: tensor(0, *shape, dtype="BF16") for name, shape in shapes(TINY).items()}
    files = {"config.json": json.dumps(TINY).encode(), "model.safetensors": safetensors_file(named, {"format": "pt"})}
    one = StandIn(manifest=SWARM.publish(files).manifest, files={"config.json": files["config.json"]})
    engine = EngineSection(kind="transformers", device="cpu", threads=1, batch_rollouts=2)
    found = await try_engine(NodeConfig(engine=engine), [], one)
    assert isinstance(found, EngineSpeed), found
    assert found.tokens_per_s > 0
