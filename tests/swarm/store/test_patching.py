"""Rebuilding on several threads: the same version as on one, each chunk checked, memory given back, no thread left."""

from __future__ import annotations

import os
import threading
import tracemalloc
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from protocol.core.errors import Fault, PeerError
from protocol.core.limits import MIB, PATCH_SEGMENT_BYTES
from swarm.store import ChunkStore
from tests.support.store_fixture import (
    fill,
    model_files,
    patch_between,
    put_patch,
    safetensors_file,
    small_swarm,
)

SWARM = small_swarm()
CHUNK_BYTES = 3 * MIB // 4
"""Neither a part of a segment nor a multiple of one."""


def model(seed: int) -> dict[str, bytes]:
    """Ten segments in two files, some values of every chunk of which depend on the seed."""
    files = {}
    for number in range(2):
        bits = np.random.default_rng(number).integers(0, 1 << 16, 5 * PATCH_SEGMENT_BYTES // 2, np.uint16)
        bits[:: 1 << 12] += np.uint16(seed)
        files[f"model-{number}.safetensors"] = safetensors_file({f"w{number}": ("BF16", bits.shape, bits.tobytes())})
    return files


OLD, NEW = model(0), model(1)
BASE = SWARM.publish(OLD, chunk_bytes=CHUNK_BYTES)
PATCH = patch_between(OLD, NEW)
SIGNED = SWARM.publish(NEW, version=2, previous=BASE.hash, chunk_bytes=CHUNK_BYTES, patches={BASE.hash: PATCH})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChunkStore]:
    """A store that holds the base, and has begun the version after it."""
    with ChunkStore.open(tmp_path / "store", SWARM.authority) as opened:
        fill(opened, BASE, OLD)
        opened.begin(SIGNED)
        yield opened


def threads_of_pools() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("patch")]


@pytest.mark.parametrize("cores", [1, 2, 3, 64])
def test_any_number_of_threads_makes_the_same_version(
    store: ChunkStore, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    put_patch(store, SIGNED, 0, PATCH)
    missing = store.missing(SIGNED.hash)
    assert store.rebuild(SIGNED.hash, 0) == sum(SIGNED.manifest.chunks[index].size for index in missing)
    assert model_files(store.finish(SIGNED.hash)) == NEW
    assert store.verify(SIGNED.hash) == []
    assert not threads_of_pools()


def test_a_chunk_that_is_wrong_ends_it_and_is_not_put(store: ChunkStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The patch makes another model than the manifest names, from the middle of its second file on."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    other = dict(NEW)
    name = "model-1.safetensors"
    other[name] = NEW[name][: 6 * MIB] + bytes(10) + NEW[name][6 * MIB + 10 :]
    patch = patch_between(OLD, other)
    signed = SWARM.publish(NEW, version=3, previous=BASE.hash, chunk_bytes=CHUNK_BYTES, patches={BASE.hash: patch})
    store.begin(signed)
    put_patch(store, signed, 0, patch)
    with pytest.raises(PeerError) as caught:
        store.rebuild(signed.hash, 0)
    assert caught.value.fault is Fault.BROKEN_PROMISE
    assert not threads_of_pools()
    chunks = signed.manifest.files[1].chunks
    ends = accumulate(signed.manifest.chunks[index].size for index in chunks)
    wrong = next(index for index, end in zip(chunks, ends, strict=True) if end > 6 * MIB)
    assert wrong in store.missing(signed.hash)
    assert store.verify(signed.hash) == [], "the chunks must be those of the manifest"


def test_memory_is_given_back_while_it_rebuilds(store: ChunkStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    put_patch(store, SIGNED, 0, PATCH)
    tracemalloc.start()
    try:
        store.rebuild(SIGNED.hash, 0)
        assert tracemalloc.get_traced_memory()[1] < 2 * 10 * PATCH_SEGMENT_BYTES
    finally:
        tracemalloc.stop()
