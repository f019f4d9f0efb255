"""A model that stands in for a version that is not here: its configuration and shapes, and weights drawn at random.

How fast an engine is depends on the shapes and not on the values, so it can be found out before gigabytes were fetched.
The configuration is fetched, some KiB; the shapes are in the signed manifest.

Invariants:
- What is fetched has the names that the manifest gives it, SMALL_BYTES at most.
- What is written goes to a directory that the caller removes, MOST_BYTES at most, and only where more has room.
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
"""Of a version: a processor loads and tries as much in some ten seconds, and half a minute is all there is."""

ROOM = 3
"""Times the version that disk and memory must have free: it is written, read, and perhaps held in float32."""

SMALL_BYTES = 512 * KIB
"""Of all that is fetched: configurations and the index of the weights."""

FETCH_S = 4.0

SPREAD = 0.02
"""Of the weights, as models are usually begun with: nothing becomes infinite."""

BLOCK_VALUES = MIB
"""Values that are drawn; a tensor repeats them."""

WEIGHTS = ".safetensors"


@dataclass(frozen=True, kw_only=True)
class StandIn:
    """What is needed to make one: the manifest, and the files that are not made up."""

    manifest: Manifest
    files: Mapping[str, bytes]


def why_no_stand_in(manifest: Manifest, *, free_bytes: int, memory_bytes: int) -> str:
    """Why none is made here, as a clause; empty if one may be."""
    total = manifest.total_bytes
    if total > MOST_BYTES:
        return f"a model of {size(total)} cannot be tried in half a minute; a node measures it when it has the first"
    if ROOM * total > min(free_bytes, memory_bytes):
        what = "on the disk" if free_bytes < memory_bytes else "in memory"
        return f"there is no room {what} for a model of {size(total)} beside all else"
    if odd := sorted({tensor.dtype for tensor in manifest.tensors} - DRAWN.keys()):
        return f"its weights are packed as {', '.join(odd)}, and cannot be made up"
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
        return NotKnown(why=f"the model's configuration did not come: {error or 'it took too long'}")
    return StandIn(manifest=manifest, files=files)


async def _fetch(frames: FrameStream, chunk: ChunkRef) -> bytes:
    """One chunk. Raises StreamBroken where the learner does not give it, PeerError where it gives another one."""
    while True:
        await frames.send(exchange.Request(cid=chunk.name))
        match await frames.receive(exchange.ChunkAnswer):
            case exchange.Chunk(data=data) if cid_of(data) == chunk.name:
                return data
            case exchange.Busy(retry_after_ms=retry):
                await trio.sleep(retry / 1000)
            case _:
                raise StreamBroken("the learner does not give it")


def write_stand_in(directory: Path, stand_in: StandIn, goes_on: Callable[[], bool]) -> bool:
    """Write the model into a directory that exists; return whether it is whole, since `goes_on` may say no meanwhile.

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
    """BLOCK_VALUES random values of this type."""
    values = np.random.default_rng(0).normal(0.0, SPREAD, BLOCK_VALUES).astype(np.float32)
    return DRAWN[dtype](values)


def _upper_half(values: np.ndarray) -> bytes:
    """The upper 16 bits of each float32, which are a bfloat16."""
    return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()


DRAWN: Mapping[str, Callable[[np.ndarray], bytes]] = {
    "F32": lambda values: values.tobytes(),
    "F16": lambda values: values.astype(np.float16).tobytes(),
    "BF16": _upper_half,
    "F64": lambda values: values.astype(np.float64).tobytes(),
}
"""Types that weights may have, and float32 values as their bytes."""
