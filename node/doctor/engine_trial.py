"""How many tokens a second this machine's engine makes, with the newest version that is on it already.

A node measures the same when it begins (`node.engine.throughput`), and a version that is not here cannot be loaded in
half a minute.

Invariants:
- Nothing is fetched or installed, and nothing in the node's state is changed.
- A node that runs here keeps its machine for itself: no second engine is started beside it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from node.config.node_config import NodeConfig
from node.doctor.findings import NotKnown
from node.engine.factory import open_engine
from node.engine.interface import EngineError, InstalledVersion
from node.engine.throughput import measure_speed
from node.runtime.events import EventLog
from node.state.status_file import standing_of
from node.state.stored_versions import newest_complete
from protocol.versions.manifest import SignedManifest

NO_VERSION = "no version of this swarm's model is on this machine yet; a node measures it when it has the first"


async def try_engine(config: NodeConfig, homes: list[Path]) -> float | NotKnown:
    """Start the engine with a version that one of `homes`, state directories, holds, and measure its speed."""
    if any(standing_of(home) is not None for home in homes):
        return NotKnown(why="a node is at work here: `volery status` says how it does")
    stored = next(_stored(homes), None)
    if stored is None:
        return NotKnown(why=NO_VERSION)
    signed, directory = stored
    try:
        with tempfile.TemporaryDirectory(prefix="volery-doctor-") as scratch:
            opened = open_engine(
                config.engine,
                EventLog(),
                name="trial",
                limits=config.limits,
                state=Path(scratch),
                testing=config.testing,
            )
            async with opened as engine:
                await engine.install(InstalledVersion(name=signed.version, manifest=signed.hash), directory)
                speed = await measure_speed(engine, config.engine.batch_rollouts)
    except EngineError as error:
        return NotKnown(why=f"the engine failed: {error}")
    return speed if speed > 0 else NotKnown(why="the engine made nothing in the time that it was given")


def _stored(homes: list[Path]) -> Iterator[tuple[SignedManifest, Path]]:
    """Complete versions, and where their files are."""
    for home in homes:
        if (signed := newest_complete(home / "store")) is not None:
            yield signed, home / "store" / "versions" / signed.hash.hex()
