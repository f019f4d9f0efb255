"""A model that stands in for a version: its fetched and written files, and when there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import trio

from learner.artifacts.atomic_directory import table_of
from node.doctor.findings import NotKnown
from node.doctor.stand_in import (
    DRAWN,
    MOST_BYTES,
    SMALL_BYTES,
    StandIn,
    draw,
    fetch_stand_in,
    why_no_stand_in,
    write_stand_in,
)
from protocol.versions.manifest import Manifest
from swarm.libp2p import open_libp2p
from tests.support.doctor_swarm import open_learner, version
from tests.support.store_fixture import safetensors_file, small_model, small_swarm, tensor

LOOPBACK = ["/ip4/127.0.0.1/tcp/0"]
SWARM = small_swarm()
FILES = small_model(1)
MANIFEST = SWARM.publish(FILES).manifest
PLENTY = {"free_bytes": 1 << 40, "memory_bytes": 1 << 40}


async def test_the_configuration_comes_from_the_learner_and_nothing_else(tmp_path: Path) -> None:
    signed, files = version(1000)
    async with open_learner(tmp_path, LOOPBACK, size_bytes=1000) as learner, open_libp2p(bytes(32), []) as node:
        peer = await node.dial(learner.transport.addresses())
        found = await fetch_stand_in(node, peer, signed.manifest)
        assert found == StandIn(manifest=signed.manifest, files={"config.json": files["config.json"]})
        assert learner.serving.served[node.peer_id].size_bytes == len(files["config.json"])
        gone = SWARM.publish({**FILES, "config.json": b"{}"}).manifest
        missing = await fetch_stand_in(node, peer, gone)
        assert missing == NotKnown(
            why="the model's configuration could not be fetched: the learner does not send the chunk"
        )


async def test_a_configuration_of_any_size_is_not_fetched() -> None:
    large = SWARM.publish({**FILES, "config.json": bytes(SMALL_BYTES + 1)}, chunk_bytes=1 << 16).manifest
    async with open_libp2p(bytes(32), []) as node:
        found = await fetch_stand_in(node, node.peer_id, large)
    assert found == NotKnown(why="the model's configuration is too large to be fetched for this")


def test_what_is_written_has_the_tensors_of_the_version(tmp_path: Path) -> None:
    assert write_stand_in(tmp_path, StandIn(manifest=MANIFEST, files={"config.json": b"{}"}), lambda: True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    spans = table_of(tmp_path / "model.safetensors").spans
    told = [(one.name, one.dtype, tuple(one.shape)) for one in MANIFEST.tensors]
    assert sorted((span.name, span.dtype, tuple(span.shape)) for span in spans) == sorted(told)


def test_it_ends_where_it_is_told_to(tmp_path: Path) -> None:
    left = iter([True, False])
    assert not write_stand_in(tmp_path, StandIn(manifest=MANIFEST, files={}), lambda: next(left))


@pytest.mark.parametrize("dtype", DRAWN)
def test_weights_are_small_numbers(dtype: str) -> None:
    raw = draw(dtype)
    if dtype == "BF16":
        values = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(raw, {"F16": np.float16, "F32": np.float32, "F64": np.float64}[dtype])
    assert np.isfinite(values).all()
    assert 0.015 < values.astype(np.float64).std() < 0.025


def packed() -> Manifest:
    weights = {"layer": tensor(0, 4, 4, dtype="U8")}
    return SWARM.publish({"config.json": b"{}", "model.safetensors": safetensors_file(weights)}).manifest


def huge() -> Manifest:
    class Huge(Manifest, frozen=True, kw_only=True):
        @property
        def total_bytes(self) -> int:
            return MOST_BYTES + 1

    return Huge(**{name: getattr(MANIFEST, name) for name in MANIFEST.__struct_fields__})


@pytest.mark.parametrize(
    ("manifest", "room", "why"),
    [
        (MANIFEST, PLENTY, ""),
        (huge(), PLENTY, "a model of 1.4 GiB cannot be tried in half a minute"),
        (MANIFEST, {**PLENTY, "free_bytes": 1000}, "there is not enough room on the disk for a model of 6.22 KiB"),
        (MANIFEST, {**PLENTY, "memory_bytes": 1000}, "there is not enough room in memory for a model of 6.22 KiB"),
        (packed(), PLENTY, "its weights are stored as U8, and random weights of that type cannot be made"),
    ],
)
def test_when_there_is_none(manifest: Manifest, room: dict[str, int], why: str) -> None:
    found = why_no_stand_in(manifest, **room)
    assert found.startswith(why)
    assert bool(found) is bool(why)


async def test_a_learner_that_gives_something_else_is_not_believed(tmp_path: Path) -> None:
    signed, _ = version(1000)

    async def lie(stream: object) -> None:
        await trio.sleep(0)

    async with open_learner(tmp_path, LOOPBACK, size_bytes=1000) as learner, open_libp2p(bytes(32), []) as node:
        learner.transport.handle("/volery/chunks/1", lie)  # type: ignore[arg-type]
        peer = await node.dial(learner.transport.addresses())
        found = await fetch_stand_in(node, peer, signed.manifest)
    assert isinstance(found, NotKnown)
