"""Measure how long a node takes to apply a patch, from its last chunk to files that an engine may load.

Two versions are made without training: float32 masters, normally distributed, and the same after a step of normally
distributed moves that changes about half a per cent of their bf16 values. To a patch this looks like a step of Adam:
small values change more often.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.network.founding import found, now_ms, publisher_of
from learner.artifacts.version_builder import Base
from protocol.core.ids import PolicyVersion
from protocol.versions.manifest import SignedManifest
from swarm.store.chunk_store import ChunkStore

MIB = 2**20
GIB = 2**30
COLUMNS = 1024
TENSOR_BYTES = 32 * MIB
DEVIATION = 0.02
STEP = 1.1e-7
"""Deviation of a master's move. It changes 0.50 % of the bf16 values."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """Two versions as a learner publishes them: `new` offers a patch from `old`, whose files are in `old_files`.

    `changed` is the share of the bf16 values that differ.
    """

    old: SignedManifest
    new: SignedManifest
    old_files: Path
    patch: bytes
    changed: float


@dataclass(frozen=True, kw_only=True)
class Applied:
    """One application of a patch: seconds per GiB of weights, by the clock and of all processors."""

    wall_s_per_gib: float
    cpu_s_per_gib: float


def publish_update(out: Path, num_tensors: int, seed: int = 0) -> Update:
    """Publish two versions of `num_tensors` tensors of 32 MiB, and keep the files of the first below `out`."""
    changed = _write_versions(out / "old", out / "new", num_tensors, seed)
    builder = publisher_of("learner")
    old = builder.publish(out / "old", PolicyVersion(1, 0), None, now_ms()).signed
    base = Base(manifest=old, directory=out / "old")
    published = builder.publish(out / "new", PolicyVersion(1, 1), old.hash, now_ms(), [base])
    patch = published.patches[0].read_bytes()
    shutil.rmtree(out / "new")
    return Update(old=old, new=published.signed, old_files=out / "old", patch=patch, changed=changed)


def applications(update: Update, root: Path) -> Iterator[Applied]:
    """Apply the patch repeatedly in a new store at `root`: each result is one application.

    The clock starts when the patch's last chunk is put and ends when the version is complete: rebuilt, every chunk
    checked, written and synced. Room for the version is made before, as a node does when it begins to fetch.
    """
    manifest = update.new.manifest
    with ChunkStore.open(root, found()[1]) as store:
        store.adopt(update.old, update.old_files)
        while True:
            store.begin(update.new)
            store.begin_patch(update.new.hash, 0)
            *chunks, last = _chunks(update)
            for index, data in chunks:
                store.put(update.new.hash, index, data)
            cpu, began = time.process_time(), time.perf_counter()
            store.put(update.new.hash, *last)
            store.rebuild(update.new.hash, 0)
            store.finish(update.new.hash)
            passed, used = time.perf_counter() - began, time.process_time() - cpu
            yield Applied(
                wall_s_per_gib=passed * GIB / manifest.total_bytes, cpu_s_per_gib=used * GIB / manifest.total_bytes
            )
            store.evict([update.old.hash])


def _chunks(update: Update) -> Iterator[tuple[int, bytes]]:
    """Yield the chunks of the patch, with their numbers."""
    offset = 0
    for index in update.new.manifest.patches[0].chunks:
        size = update.new.manifest.chunks[index].size
        yield index, update.patch[offset : offset + size]
        offset += size


def _write_versions(old: Path, new: Path, num_tensors: int, seed: int) -> float:
    """Write both versions into new directories; return the share of values that differ."""
    rng = np.random.default_rng(seed)
    header = _header(num_tensors)
    changed = 0
    for directory in (old, new):
        directory.mkdir(parents=True)
    with (old / "model.safetensors").open("wb") as before, (new / "model.safetensors").open("wb") as after:
        for file in (before, after):
            file.write(header)
        for _ in range(num_tensors):
            masters = rng.standard_normal(TENSOR_BYTES // 2, np.float32) * np.float32(DEVIATION)
            moves = rng.standard_normal(TENSOR_BYTES // 2, np.float32) * np.float32(STEP)
            bits = [_bf16(masters), _bf16(masters + moves)]
            changed += int(np.count_nonzero(bits[0] != bits[1]))
            for file, values in zip((before, after), bits, strict=True):
                file.write(values.data)
    return changed / (num_tensors * TENSOR_BYTES // 2)


def _header(num_tensors: int) -> bytes:
    """Return the head of a safetensors file. numpy has no bf16, so the format's own writer cannot be used."""
    shape = [TENSOR_BYTES // 2 // COLUMNS, COLUMNS]
    table: dict[str, Any] = {
        f"model.layers.{number}.weight": {
            "dtype": "BF16",
            "shape": shape,
            "data_offsets": [number * TENSOR_BYTES, (number + 1) * TENSOR_BYTES],
        }
        for number in range(num_tensors)
    }
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _bf16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Return the bits of the nearest bf16 values, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + (bits >> 16 & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)
