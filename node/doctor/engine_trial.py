"""Measure how many tokens a second this machine's engine generates, with a stored version or a stand-in model.

A node measures the same when it begins (`node.engine.throughput`).

Invariants:

- Nothing is installed, and nothing in the node's state is changed. The disk space of a stand-in is freed again.
- If a node runs on this machine, no second engine is started beside it.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import psutil
import trio

from node.config.node_config import NodeConfig
from node.doctor.findings import EngineFailed, EngineSpeed, NotKnown
from node.doctor.stand_in import StandIn, why_no_stand_in, write_stand_in
from node.engine.factory import open_engine
from node.engine.interface import EngineError, InstalledVersion
from node.engine.throughput import measure_speed
from node.runtime.events import EventLog
from node.state.status_file import standing_of
from node.state.stored_versions import newest_complete
from protocol.core.ids import ManifestHash
from protocol.core.visible import first_line
from protocol.versions.manifest import SignedManifest

SCRATCH = "volery-doctor-"
"""Prefix of the temporary directories for an engine and for a stand-in."""

NO_MANIFEST = ManifestHash(bytes(32))
"""The manifest hash under which the engine loads a stand-in, which is no version."""


async def try_engine(config: NodeConfig, homes: Sequence[Path], stand_in: StandIn | NotKnown) -> EngineSpeed | NotKnown:
    """Start the engine and measure its speed, with a version that one of the state directories `homes` holds, or else
    with the stand-in."""
    if any(standing_of(home) is not None for home in homes):
        return NotKnown(why="a node is running here; `volery status` shows how it is doing")
    if config.engine.kind == "vllm":
        return NotKnown(why="vLLM takes longer than half a minute to start; a node measures its speed once it runs")
    if (stored := next(_stored(homes), None)) is not None:
        signed, directory = stored
        return await _measure(config, InstalledVersion(name=signed.version, manifest=signed.hash), directory)
    if isinstance(stand_in, NotKnown):
        return stand_in
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as place:
        free, memory = shutil.disk_usage(place).free, psutil.virtual_memory().available
        if why := why_no_stand_in(stand_in.manifest, free_bytes=free, memory_bytes=memory):
            return NotKnown(why=why)
        try:
            await _write(Path(place), stand_in)
        except OSError as error:
            return NotKnown(why=f"no model could be written to {place}: {error.strerror}")
        version = InstalledVersion(name=stand_in.manifest.version, manifest=NO_MANIFEST)
        return await _measure(config, version, Path(place), is_of_stand_in=True)


async def _measure(
    config: NodeConfig, version: InstalledVersion, directory: Path, *, is_of_stand_in: bool = False
) -> EngineSpeed | NotKnown:
    """Start the engine with the model in `directory`, and measure its speed."""
    try:
        with tempfile.TemporaryDirectory(prefix=SCRATCH) as scratch:
            opened = open_engine(
                config.engine,
                EventLog(),
                name="trial",
                limits=config.limits,
                state=Path(scratch),
                testing=config.testing,
            )
            async with opened as engine:
                await engine.install(version, directory)
                speed = await measure_speed(engine, config.engine.batch_rollouts)
    except EngineError as error:
        return EngineFailed(why=f"the engine failed: {first_line(str(error))}")
    if speed <= 0:
        return NotKnown(why="the engine generated nothing in the time that it had")
    return EngineSpeed(tokens_per_s=speed, is_of_stand_in=is_of_stand_in)


async def _write(directory: Path, stand_in: StandIn) -> None:
    """Write a stand-in on a thread, which ends soon after this is cancelled."""
    stopped = threading.Event()
    try:
        await trio.to_thread.run_sync(
            partial(write_stand_in, directory, stand_in, lambda: not stopped.is_set()), abandon_on_cancel=True
        )
    finally:
        stopped.set()


def _stored(homes: Sequence[Path]) -> Iterator[tuple[SignedManifest, Path]]:
    """Yield complete versions, and the directories of their files."""
    for home in homes:
        if (signed := newest_complete(home / "store")) is not None:
            yield signed, home / "store" / "versions" / signed.hash.hex()
