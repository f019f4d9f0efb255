"""Patches in the store are kept once begun, served like any chunk, and made into chunks of files, each checked."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.core.errors import Fault, PeerError
from protocol.core.ids import ManifestHash
from swarm.store import ChunkStore, StoreError, StoreFull, VersionIncomplete, VersionUnknown
from tests.support.store_fixture import (
    fill,
    model_files,
    nudged,
    patch_between,
    put_patch,
    small_model,
    small_swarm,
    write_model,
)

SWARM = small_swarm()
BASE_FILES = small_model(1)
BASE = SWARM.publish(BASE_FILES)
FILES = nudged(BASE_FILES)
PATCH = patch_between(BASE_FILES, FILES)
SIGNED = SWARM.publish(FILES, version=2, previous=BASE.hash, patches={BASE.hash: PATCH})
ENTRY = SIGNED.manifest.patches[0]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChunkStore]:
    """A store that holds the base, and has begun the version after it."""
    with ChunkStore.open(tmp_path / "store", SWARM.authority) as opened:
        fill(opened, BASE, BASE_FILES)
        opened.begin(SIGNED)
        yield opened


def reopened(store: ChunkStore) -> ChunkStore:
    store.close()
    return ChunkStore.open(store.root, SWARM.authority)


def test_the_chunks_of_a_patch_are_kept_once_it_was_begun(store: ChunkStore) -> None:
    index = ENTRY.chunks[0]
    first = PATCH[: SIGNED.manifest.chunks[index].size]
    assert store.put(SIGNED.hash, index, first) is False
    assert store.get(SIGNED.manifest.chunks[index].name) is None
    store.begin_patch(SIGNED.hash, 0)
    assert store.missing(SIGNED.hash, ENTRY.chunks) == sorted(ENTRY.chunks)
    assert store.put(SIGNED.hash, index, first) is True
    store.begin_patch(SIGNED.hash, 0)  # again, and nothing is lost
    assert store.get(SIGNED.manifest.chunks[index].name) == first
    assert index not in store.missing(SIGNED.hash, ENTRY.chunks)
    assert store.have_bitmap(SIGNED.hash)[index // 8] >> index % 8 & 1


def test_a_patch_makes_what_is_missing_and_nothing_else(store: ChunkStore) -> None:
    missing = store.missing(SIGNED.hash)
    assert 0 < len(missing) < len(SIGNED.manifest.chunks) - len(ENTRY.chunks)  # equal chunks were copied
    put_patch(store, SIGNED, 0, PATCH)
    assert store.rebuild(SIGNED.hash, 0) == sum(SIGNED.manifest.chunks[index].size for index in missing)
    assert model_files(store.finish(SIGNED.hash)) == FILES
    assert store.rebuild(SIGNED.hash, 0) == 0
    for index, chunk in enumerate(SIGNED.manifest.chunks):  # chunks of files and of the patch can all be served
        assert store.get(chunk.name) is not None, index
    assert store.verify(SIGNED.hash) == []


def test_a_version_is_complete_without_its_patch(store: ChunkStore) -> None:
    assert model_files(fill(store, SIGNED, FILES)) == FILES
    assert store.missing(SIGNED.hash, ENTRY.chunks) == sorted(ENTRY.chunks)


def test_a_patch_is_taken_up_after_a_kill(store: ChunkStore) -> None:
    put_patch(store, SIGNED, 0, PATCH)
    again = reopened(store)
    assert again.missing(SIGNED.hash, ENTRY.chunks) == []
    again.rebuild(SIGNED.hash, 0)
    again.finish(SIGNED.hash)
    with reopened(again) as complete:
        assert complete.is_complete(SIGNED.hash)
        assert complete.missing(SIGNED.hash, ENTRY.chunks) == []


def test_what_a_disk_made_of_a_patch_is_found_out_at_the_start(store: ChunkStore) -> None:
    put_patch(store, SIGNED, 0, PATCH)
    store.rebuild(SIGNED.hash, 0)
    (store.finish(SIGNED.hash) / ".patch-0").write_bytes(bytes(len(PATCH)))
    with reopened(store) as again:
        assert again.is_complete(SIGNED.hash)
        assert again.missing(SIGNED.hash, ENTRY.chunks) == sorted(ENTRY.chunks)


def test_a_patch_of_which_a_chunk_is_missing_makes_nothing(store: ChunkStore) -> None:
    missing = store.missing(SIGNED.hash)
    store.begin_patch(SIGNED.hash, 0)
    with pytest.raises(VersionIncomplete, match="chunk of a patch"):
        store.rebuild(SIGNED.hash, 0)
    assert store.missing(SIGNED.hash) == missing


def test_a_patch_that_makes_something_else_is_refused(store: ChunkStore) -> None:
    """The patch is signed and whole, but makes another model than the one whose chunks the manifest lists."""
    other = patch_between(BASE_FILES, small_model(3))
    signed = SWARM.publish(FILES, version=3, previous=BASE.hash, patches={BASE.hash: other})
    store.begin(signed)
    missing = store.missing(signed.hash)
    put_patch(store, signed, 0, other)
    with pytest.raises(PeerError) as caught:
        store.rebuild(signed.hash, 0)
    assert caught.value.fault is Fault.BROKEN_PROMISE
    assert set(store.missing(signed.hash)) <= set(missing)
    assert not store.is_complete(signed.hash)


def test_what_is_no_patch_at_all_is_refused(store: ChunkStore) -> None:
    noise = b"not a patch" * 40
    signed = SWARM.publish(FILES, version=3, previous=BASE.hash, patches={BASE.hash: noise})
    store.begin(signed)
    put_patch(store, signed, 0, noise)
    with pytest.raises(PeerError):
        store.rebuild(signed.hash, 0)


def test_a_base_that_the_disk_changed_is_not_the_signers_fault(store: ChunkStore) -> None:
    path = store.directory(BASE.hash) / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-799] ^= 0xFF  # in a chunk that the next version does not have
    path.write_bytes(data)
    put_patch(store, SIGNED, 0, PATCH)
    with pytest.raises(StoreError, match="gone bad on this disk"):
        store.rebuild(SIGNED.hash, 0)
    assert not store.is_complete(BASE.hash)


def test_without_its_base_a_patch_is_worth_nothing(store: ChunkStore) -> None:
    unknown = SWARM.publish(FILES, version=3, patches={ManifestHash(bytes(32)): PATCH})
    store.begin(unknown)
    put_patch(store, unknown, 0, PATCH)
    with pytest.raises(VersionUnknown):
        store.rebuild(unknown.hash, 0)
    put_patch(store, SIGNED, 0, PATCH)
    store.evict({SIGNED.hash})
    with pytest.raises(VersionUnknown):
        store.rebuild(SIGNED.hash, 0)


def test_a_published_version_brings_its_patches(tmp_path: Path) -> None:
    export = write_model(tmp_path / "export", FILES)
    (tmp_path / "from-the-version-before").write_bytes(PATCH)
    with ChunkStore.open(tmp_path / "store", SWARM.authority) as store:
        directory = store.adopt(SIGNED, export, [tmp_path / "from-the-version-before"])
        assert model_files(directory) == FILES
        assert store.missing(SIGNED.hash, range(len(SIGNED.manifest.chunks))) == []
        assert all(len(store.get(chunk.name) or b"") == chunk.size for chunk in SIGNED.manifest.chunks)


def test_a_patch_counts_towards_the_quota(tmp_path: Path) -> None:
    quota = BASE.manifest.total_bytes + SIGNED.manifest.total_bytes + len(PATCH) - 1
    with ChunkStore.open(tmp_path / "store", SWARM.authority, quota_bytes=quota) as store:
        fill(store, BASE, BASE_FILES)
        store.begin(SIGNED)
        with store.hold(BASE.hash), pytest.raises(StoreFull):
            store.begin_patch(SIGNED.hash, 0)
        assert len(store.versions()) == 2
        store.begin_patch(SIGNED.hash, 0)
        store.begin_patch(SIGNED.hash, 0)
        assert [held.hash for held in store.versions()] == [SIGNED.hash], (
            "the base must be gone, although that made too little room"
        )


def test_a_patch_that_the_disk_cannot_take_leaves_no_trace(store: ChunkStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store.begin(SIGNED)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(StoreFull):
            store.begin_patch(SIGNED.hash, 0)
    (directory,) = (store.root / "versions").iterdir()
    assert ".patch-0" not in {path.name for path in directory.iterdir()}
    put_patch(store, SIGNED, 0, PATCH)


def test_a_patch_with_a_chunk_that_a_file_has_too(tmp_path: Path) -> None:
    """A chunk is named by its contents: one that is held counts for every list with it."""
    config = BASE_FILES["config.json"]
    signed = SWARM.publish(BASE_FILES, version=2, patches={ManifestHash(bytes(32)): config})
    assert signed.manifest.patches[0].chunks == signed.manifest.files[0].chunks
    with ChunkStore.open(tmp_path / "store", SWARM.authority) as store:
        fill(store, signed, BASE_FILES)
        store.begin_patch(signed.hash, 0)
        assert (store.directory(signed.hash) / ".patch-0").read_bytes() == config
