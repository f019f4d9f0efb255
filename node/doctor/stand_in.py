"""Make a model that stands in for a version that is not here: its configuration and shapes, with random weights.

How fast an engine is depends on the shapes and not on the values. So the speed can be measured before gigabytes were
fetched. Only the configuration is fetched, a few KiB; the shapes are in the signed manifest.

Invariants:

- Only files that the manifest names are fetched, SMALL_BYTES at most.
- The stand-in is written into a directory that the caller removes. It has at most MOST_BYTES, and is written only where
  more than that is free.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import trio

from learner.artifacts.atomic_directory import TensorEntry, header_of
from node.doctor.findings import NotKnown
from node.runtime.formatting import size
from protocol.core.digest import cid_of
from protocol.core.errors import PeerError
from protocol.core.ids import PeerId
from protocol.core.limits import KIB, MIB
from protocol.versions import exchange
from protocol.versions.manifest import ChunkRef, Manifest
from swarm.transport.error_groups import first_cause
from swarm.transport.framing import FrameStream, open_frames
from swarm.transport.interface import StreamBroken, StreamRefused, Transport

MOST_BYTES = 1_500_000_000
"""Largest version that is tried: a CPU loads and tries that much in about ten seconds, out of half a minute."""

ROOM = 3
"""How many times the version's size must be free on disk and in memory: it is written, read, and perhaps held in
float32."""

SMALL_BYTES = 512 * KIB
"""Most bytes that are fetched: configurations and the index of the weights."""

FETCH_S = 4.0

SPREAD = 0.02
"""Standard deviation of the weights, as models are usually initialised, so that no value becomes infinite."""

BLOCK_VALUES = MIB
"""Random values that are drawn; each tensor repeats them."""

WEIGHTS = ".safetensors"


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """The parts of a stand-in: the manifest, and the files that are real."""

    manifest: Manifest
    files: Mapping[str, bytes]


def why_no_stand_in(manifest: Manifest, *, free_bytes: int, memory_bytes: int) -> str:
    """Return why no stand-in is made here, as a clause; "" if one may be."""
    total = manifest.total_bytes
    if total > MOST_BYTES:
        return f"a model of {size(total)} cannot be tried in half a minute; a node measures its speed with a version"
    if ROOM * total > min(free_bytes, memory_bytes):
        what = "on the disk" if free_bytes < memory_bytes else "in memory"
        return f"there is not enough room {what} for a model of {size(total)}"
    if odd := sorted({tensor.dtype for tensor in manifest.tensors} - DRAWN.keys()):
        return f"its weights are stored as {', '.join(odd)}, and random weights of that type cannot be made"
    return ""


async def fetch_stand_in(transport: Transport, learner: PeerId, manifest: Manifest) -> StandIn | NotKnown:
    """Fetch the small files of a version."""
    names = [entry.name for entry in manifest.files if entry.name.endswith(".json") and "tokenizer" not in entry.name]
    if sum(entry.size for entry in manifest.files if entry.name in names) > SMALL_BYTES:
        return NotKnown(why="the model's configuration is too large to be fetched for this")
    files: dict[str, bytes] = {}
    try:
        with trio.fail_after(FETCH_S), first_cause():
            stream = await transport.open_stream(learner, exchange.CHUNKS)
            async with open_frames(stream, exchange.MAX_CHUNK_FRAME_BYTES) as frames:
                for entry in manifest.files:
                    if entry.name in names:
                        pieces = [await _fetch(frames, manifest.chunks[index]) for index in entry.chunks]
                        files[entry.name] = b"".join(pieces)
    except (StreamRefused, StreamBroken, PeerError, trio.TooSlowError) as error:
        return NotKnown(why=f"the model's configuration could not be fetched: {error or 'it took too long'}")
    return StandIn(manifest=manifest, files=files)


async def _fetch(frames: FrameStream, chunk: ChunkRef) -> bytes:
    """Return one chunk. Raises StreamBroken if the learner does not send it, PeerError if it sends another one."""
    while True:
        await frames.send(exchange.Request(cid=chunk.name))
        match await frames.receive(exchange.ChunkAnswer):
            case exchange.Chunk(data=data) if cid_of(data) == chunk.name:
                return data
            case exchange.Busy(retry_after_ms=retry):
                await trio.sleep(retry / 1000)
            case _:
                raise StreamBroken("the learner does not send the chunk")


def write_stand_in(directory: Path, stand_in: StandIn, goes_on: Callable[[], bool]) -> bool:
    """Write the model into an existing directory. Return whether it is complete: it stops when `goes_on` returns False.

    Raises OSError.
    """
    for name, data in stand_in.files.items():
        (directory / name).write_bytes(data)
    for number, entry in enumerate(stand_in.manifest.files):
        if not entry.name.endswith(WEIGHTS):
            continue
        held = sorted((one for one in stand_in.manifest.tensors if one.file == number), key=lambda one: one.start)
        tensors = [
            TensorEntry(name=one.name, dtype=one.dtype, shape=tuple(one.shape), size_bytes=one.end - one.start)
            for one in held
        ]
        if not _write_weights(directory / entry.name, tensors, goes_on):
            return False
    return True


def _write_weights(path: Path, tensors: Sequence[TensorEntry], goes_on: Callable[[], bool]) -> bool:
    blocks = {dtype: draw(dtype) for dtype in {tensor.dtype for tensor in tensors}}
    with path.open("wb") as file:
        file.write(header_of(tensors))
        for tensor in tensors:
            block, left = memoryview(blocks[tensor.dtype]), tensor.size_bytes
            while left > 0:
                if not goes_on():
                    return False
                left -= file.write(block[:left])
    return True


def draw(dtype: str) -> bytes:
    """Return BLOCK_VALUES random values of this type."""
    values = np.random.default_rng(0).normal(0.0, SPREAD, BLOCK_VALUES).astype(np.float32)
    return DRAWN[dtype](values)


def _upper_half(values: np.ndarray) -> bytes:
    """Return the upper 16 bits of each float32, which are a bfloat16."""
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


DRAWN: Mapping[str, Callable[[np.ndarray], bytes]] = {
    "F32": lambda values: values.tobytes(),
    "F16": lambda values: values.astype(np.float16).tobytes(),
    "BF16": _upper_half,
    "F64": lambda values: values.astype(np.float64).tobytes(),
}
"""Data types that weights may have, and how float32 values become their bytes."""
