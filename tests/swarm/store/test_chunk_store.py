"""Test the store's promises, one promise a test; kills are in `test_store_kill`."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from protocol.core.digest import cid_of
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.ids import ManifestHash
from protocol.versions.manifest import ChunkRef, PatchEntry, SignedManifest, sign_manifest
from swarm.store import (
    ChunkStore,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreLocked,
    StoreUnwritable,
    VersionIncomplete,
    VersionUnknown,
    version_directory,
)
from swarm.store.durable_io import write_pieces
from tests.support.paths import ROOT
from tests.support.store_fixture import chunk_data, fill, model_files, small_model, small_swarm, write_model

SWARM = small_swarm()
FILES = small_model(1)
SIGNED = SWARM.publish(FILES)
NEXT_FILES = small_model(2)
NEXT = SWARM.publish(NEXT_FILES, version=2, previous=SIGNED.hash)
NUM_CHUNKS = len(SIGNED.manifest.chunks)
UNKNOWN = ManifestHash(bytes(32))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ChunkStore]:
    with ChunkStore.open(tmp_path / "store", SWARM.authority) as opened:
        yield opened


def reopened(store: ChunkStore) -> ChunkStore:
    store.close()
    return ChunkStore.open(store.root, SWARM.authority)


def put(store: ChunkStore, index: int, signed: SignedManifest = SIGNED) -> bool:
    return store.put(signed.hash, index, chunk_data(signed, FILES if signed is SIGNED else NEXT_FILES, index))


def bits(bitmap: bytes) -> set[int]:
    return {8 * number + bit for number, byte in enumerate(bitmap) for bit in range(8) if byte >> bit & 1}


def damage(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


# Filling a version.


def test_a_filled_version_is_byte_identical(store: ChunkStore) -> None:
    directory = fill(store, SIGNED, FILES)
    assert model_files(directory) == FILES
    assert directory == store.directory(SIGNED.hash) == store.root / "versions" / SIGNED.hash.hex()
    assert sorted(path.name for path in directory.iterdir()) == sorted(FILES)  # no trace of the fetch


def test_a_version_is_a_part_until_it_is_finished(store: ChunkStore) -> None:
    store.begin(SIGNED)
    for index in range(NUM_CHUNKS):
        assert not store.is_complete(SIGNED.hash)
        with pytest.raises(VersionIncomplete):
            store.directory(SIGNED.hash)
        with pytest.raises(VersionIncomplete, match=f"{NUM_CHUNKS - index} chunks of version 1.1"):
            store.finish(SIGNED.hash)
        assert not (store.root / "versions" / SIGNED.hash.hex()).exists()
        assert put(store, index)
    store.finish(SIGNED.hash)
    assert store.is_complete(SIGNED.hash)
    assert store.finish(SIGNED.hash) == store.directory(SIGNED.hash)


def test_bitmap_and_missing_follow_what_is_put(store: ChunkStore) -> None:
    store.begin(SIGNED)
    held = set()
    for index in (3, 0, 9):
        put(store, index)
        held.add(index)
        assert bits(store.have_bitmap(SIGNED.hash)) == held
        assert store.missing(SIGNED.hash) == [i for i in range(NUM_CHUNKS) if i not in held]
    assert len(store.have_bitmap(SIGNED.hash)) == -(-NUM_CHUNKS // 8)


def test_putting_twice_changes_nothing(store: ChunkStore) -> None:
    store.begin(SIGNED)
    assert put(store, 2) is True
    assert put(store, 2) is False
    assert bits(store.have_bitmap(SIGNED.hash)) == {2}


def test_a_version_is_complete_without_its_patches(store: ChunkStore) -> None:
    patch = b"what makes the new files of the old ones"
    manifest = SIGNED.manifest
    offering = msgspec.structs.replace(
        manifest,
        chunks=[*manifest.chunks, ChunkRef(cid_of(patch), len(patch))],
        patches=[PatchEntry(bytes(32), len(patch), [NUM_CHUNKS])],
    )
    signed = sign_manifest(SWARM.learner, SWARM.authority, offering)
    store.begin(signed)
    assert store.missing(signed.hash) == list(range(NUM_CHUNKS))
    assert store.put(signed.hash, NUM_CHUNKS, patch) is False, "it has no place in a file"
    assert NUM_CHUNKS not in bits(store.have_bitmap(signed.hash))
    assert store.get(cid_of(patch)) is None
    assert model_files(fill(store, signed, FILES)) == FILES
    assert store.is_complete(signed.hash)
    assert bits(store.have_bitmap(signed.hash)) == set(range(NUM_CHUNKS))
    with reopened(store) as again:
        assert again.is_complete(signed.hash)
        assert again.verify(signed.hash) == []


@pytest.mark.parametrize("bit", [0, 7, 1000])
def test_a_flipped_bit_is_refused_before_anything_is_written(store: ChunkStore, bit: int) -> None:
    store.begin(SIGNED)
    index = max(range(NUM_CHUNKS), key=lambda number: SIGNED.manifest.chunks[number].size)
    good = chunk_data(SIGNED, FILES, index)
    bad = bytearray(good)
    bad[bit // 8] ^= 1 << bit % 8
    part = store.root / "versions" / f"{SIGNED.hash.hex()}.part"
    before = model_files(part)
    with pytest.raises(PeerError) as caught:
        store.put(SIGNED.hash, index, bytes(bad))
    assert caught.value.fault is Fault.CORRUPT_CHUNK
    assert model_files(part) == before
    assert store.get(cid_of(good)) is None
    assert store.have_bitmap(SIGNED.hash).count(0) == len(store.have_bitmap(SIGNED.hash))


@pytest.mark.parametrize("wrong", [b"", b"x", bytes(1 << 16)])
def test_other_bytes_are_refused(store: ChunkStore, wrong: bytes) -> None:
    store.begin(SIGNED)
    with pytest.raises(PeerError, match="corrupt_chunk"):
        store.put(SIGNED.hash, 0, wrong)


@pytest.mark.parametrize("index", [-1, NUM_CHUNKS])
def test_an_index_outside_the_table_is_our_mistake(store: ChunkStore, index: int) -> None:
    store.begin(SIGNED)
    with pytest.raises(LocalProtocolError):
        store.put(SIGNED.hash, index, b"x")


def test_what_was_never_begun_is_unknown(store: ChunkStore) -> None:
    for call in (store.missing, store.finish, store.directory, store.verify, store.pin):
        with pytest.raises(VersionUnknown):
            call(UNKNOWN)
    with pytest.raises(VersionUnknown):
        store.put(UNKNOWN, 0, b"x")
    assert store.have_bitmap(UNKNOWN) == b""
    assert store.manifest_bytes(UNKNOWN) is None
    assert not store.is_complete(UNKNOWN)


def test_a_chunk_that_occurs_many_times_is_put_once_and_written_everywhere(store: ChunkStore) -> None:
    files = {"a.txt": bytes(1024) + b"end", "b.txt": bytes(512)}
    signed = SWARM.publish(files)
    assert len(signed.manifest.chunks) == 2
    assert model_files(fill(store, signed, files)) == files


def test_empty_files_and_versions_without_chunks(store: ChunkStore) -> None:
    files = {"empty.json": b""}
    signed = SWARM.publish(files)
    assert store.begin(signed) == 0
    assert store.missing(signed.hash) == []
    assert model_files(store.finish(signed.hash)) == files


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let `act` happen once, while bytes are written."""
    acts = [act]

    def write(handle: int, pieces: Iterable[tuple[int, Sequence[bytes | memoryview]]]) -> None:
        if acts:
            acts.pop()()
        write_pieces(handle, pieces)

    monkeypatch.setattr(version_directory, "write_pieces", write)


def test_a_patch_that_is_begun_while_its_chunk_is_written_gets_the_chunk(
    store: ChunkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = SIGNED.manifest.chunks[0]
    offering = msgspec.structs.replace(SIGNED.manifest, patches=[PatchEntry(bytes(32), chunk.size, [0])])
    signed = sign_manifest(SWARM.learner, SWARM.authority, offering)
    store.begin(signed)
    meanwhile(monkeypatch, lambda: store.begin_patch(signed.hash, 0))
    assert store.put(signed.hash, 0, chunk_data(SIGNED, FILES, 0)) is True
    (patch,) = store.root.glob("versions/*/.patch-0")
    assert patch.read_bytes() == chunk_data(SIGNED, FILES, 0)
    assert bits(store.have_bitmap(signed.hash)) == {0}


def test_a_version_that_is_evicted_while_a_chunk_is_written_holds_nothing(
    store: ChunkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.begin(SIGNED)
    meanwhile(monkeypatch, lambda: store.evict([]))
    with pytest.raises(VersionUnknown):
        put(store, 0)
    assert store.versions() == []
    assert list((store.root / "versions").iterdir()) == []


def test_a_chunk_that_two_threads_write_at_once_was_put_by_one(
    store: ChunkStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.begin(SIGNED)
    done: list[bool] = []
    meanwhile(monkeypatch, lambda: done.append(put(store, 0)))
    done.append(put(store, 0))
    assert sorted(done) == [False, True]


def test_many_threads_fill_one_version(store: ChunkStore) -> None:
    store.begin(SIGNED)
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for index in range(NUM_CHUNKS):  # everybody puts everything, each from another beginning
                put(store, (index + 5 * number) % NUM_CHUNKS)
                assert store.get(SIGNED.manifest.chunks[(index + 5 * number) % NUM_CHUNKS].name) is not None
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert model_files(store.finish(SIGNED.hash)) == FILES


# Serving.


def test_chunks_of_partial_and_complete_versions_are_served(store: ChunkStore) -> None:
    store.begin(SIGNED)
    put(store, 1)
    first, second = (SIGNED.manifest.chunks[index].name for index in (1, 2))
    assert store.get(first) == chunk_data(SIGNED, FILES, 1)
    assert (store.holds(first), store.holds(second)) == (True, False)
    assert store.get(second) is None
    fill(store, SIGNED, FILES)
    for index, chunk in enumerate(SIGNED.manifest.chunks):
        assert store.get(chunk.name) == chunk_data(SIGNED, FILES, index)


def test_a_chunk_gone_bad_on_disk_is_not_served_and_can_be_put_again(store: ChunkStore) -> None:
    directory = fill(store, SIGNED, FILES)
    chunk = SIGNED.manifest.chunks[0]  # chunk 0 begins config.json, the first file by name
    damage(directory / "config.json", 0)
    assert store.get(chunk.name) is None
    assert store.missing(SIGNED.hash) == [0]
    assert not store.is_complete(SIGNED.hash)
    with pytest.raises(VersionIncomplete):
        store.directory(SIGNED.hash)
    assert put(store, 0)
    assert store.get(chunk.name) == chunk_data(SIGNED, FILES, 0)
    assert model_files(store.directory(SIGNED.hash)) == FILES
    assert sorted(path.name for path in directory.iterdir()) == sorted(FILES)


def test_damage_that_was_found_is_remembered_across_a_restart(store: ChunkStore) -> None:
    damage(fill(store, SIGNED, FILES) / "config.json", 0)
    store.get(SIGNED.manifest.chunks[0].name)
    with reopened(store) as again:
        assert again.missing(SIGNED.hash) == [0]
        assert not again.is_complete(SIGNED.hash)


def test_another_version_serves_what_one_has_lost(store: ChunkStore) -> None:
    fill(store, SIGNED, FILES)
    fill(store, NEXT, NEXT_FILES)
    damage(store.directory(SIGNED.hash) / "config.json", 0)  # equal in both
    assert store.get(SIGNED.manifest.chunks[0].name) == chunk_data(SIGNED, FILES, 0)


def test_verify_finds_all_damage(store: ChunkStore) -> None:
    directory = fill(store, SIGNED, FILES)
    assert store.verify(SIGNED.hash) == []
    damage(directory / "config.json", 0)
    (directory / "tokenizer.json").write_bytes(b"short")
    bad = store.verify(SIGNED.hash)
    assert bad == store.missing(SIGNED.hash)
    tokenizer = next(entry for entry in SIGNED.manifest.files if entry.name == "tokenizer.json")
    assert set(bad) == {0, *tokenizer.chunks}


# Chunks that other versions hold.


def test_begin_copies_what_other_versions_hold(store: ChunkStore) -> None:
    fill(store, SIGNED, FILES)
    shared = {chunk.cid for chunk in SIGNED.manifest.chunks} & {chunk.cid for chunk in NEXT.manifest.chunks}
    copied = store.begin(NEXT)
    assert copied == sum(chunk.size for chunk in NEXT.manifest.chunks if chunk.cid in shared) > 0
    assert store.missing(NEXT.hash) == [i for i, chunk in enumerate(NEXT.manifest.chunks) if chunk.cid not in shared]
    assert store.begin(NEXT) == 0
    assert model_files(fill(store, NEXT, NEXT_FILES)) == NEXT_FILES


def test_begin_copies_from_parts_and_never_copies_damage(store: ChunkStore) -> None:
    store.begin(SIGNED)
    put(store, 0)
    assert store.begin(NEXT) == SIGNED.manifest.chunks[0].size
    store.evict({SIGNED.hash})
    damage(store.root / "versions" / f"{SIGNED.hash.hex()}.part" / "config.json", 0)
    assert store.begin(NEXT) == 0


def test_a_version_of_equal_content_needs_no_peer(store: ChunkStore) -> None:
    fill(store, SIGNED, FILES)
    same = SWARM.publish(FILES, version=3)
    assert same.hash != SIGNED.hash
    store.begin(same)
    assert store.missing(same.hash) == []
    assert model_files(store.finish(same.hash)) == FILES


# Adopting what the trainer wrote.


def test_an_adopted_directory_is_a_complete_version(store: ChunkStore, tmp_path: Path) -> None:
    written = write_model(tmp_path / "export", {**FILES, "trainer_state.json": b"{}"})
    directory = store.adopt(SIGNED, written)
    assert model_files(directory) == FILES  # only what the manifest lists
    assert store.is_complete(SIGNED.hash)
    shutil.rmtree(written)
    assert store.verify(SIGNED.hash) == []
    assert store.adopt(SIGNED, tmp_path / "nowhere") == directory
    with reopened(store) as again:
        assert again.is_complete(SIGNED.hash)


def test_adopting_replaces_a_part_of_the_same_version(store: ChunkStore, tmp_path: Path) -> None:
    store.begin(SIGNED)
    put(store, 0)
    directory = store.adopt(SIGNED, write_model(tmp_path / "export", FILES))
    assert model_files(directory) == FILES
    assert [path.name for path in (store.root / "versions").iterdir()] == [SIGNED.hash.hex()]


def test_a_directory_that_is_not_the_manifests_is_refused_without_a_trace(store: ChunkStore, tmp_path: Path) -> None:
    written = write_model(tmp_path / "export", {**FILES, "tokenizer.json": b"longer or shorter"})
    with pytest.raises(StoreError, match=r"tokenizer\.json should have 700 bytes, but has 17"):
        store.adopt(SIGNED, written)
    (written / "tokenizer.json").unlink()
    with pytest.raises(StoreError, match=r"tokenizer\.json should have 700 bytes, but has None"):
        store.adopt(SIGNED, written)
    assert store.versions() == []
    assert list((store.root / "versions").iterdir()) == list((store.root / "manifests").iterdir()) == []


# Keeping and evicting.


def test_evict_removes_what_is_neither_kept_nor_pinned(store: ChunkStore) -> None:
    third = SWARM.publish(small_model(3), version=3)
    fill(store, SIGNED, FILES)
    fill(store, NEXT, NEXT_FILES)
    store.begin(third)
    with store.hold(SIGNED.hash):
        assert store.evict({NEXT.hash}) == [third.hash]
        assert model_files(store.directory(SIGNED.hash)) == FILES
    assert store.evict({NEXT.hash}) == [SIGNED.hash]
    assert [held.hash for held in store.versions()] == [NEXT.hash]
    for directory in ("versions", "manifests"):
        assert [path.name for path in (store.root / directory).iterdir()] == [NEXT.hash.hex()]
    with pytest.raises(VersionUnknown):
        put(store, 0)
    assert model_files(store.directory(NEXT.hash)) == NEXT_FILES


def test_pins_are_counted(store: ChunkStore) -> None:
    store.begin(SIGNED)
    store.pin(SIGNED.hash)
    store.pin(SIGNED.hash)
    store.unpin(SIGNED.hash)
    assert store.evict(()) == []
    store.unpin(SIGNED.hash)
    with pytest.raises(LocalProtocolError):
        store.unpin(SIGNED.hash)
    assert store.evict(()) == [SIGNED.hash]


def test_an_evicted_version_can_be_begun_again(store: ChunkStore) -> None:
    fill(store, SIGNED, FILES)
    store.evict(())
    assert store.get(SIGNED.manifest.chunks[0].name) is None
    assert model_files(fill(store, SIGNED, FILES)) == FILES


def test_versions_are_listed_in_order(store: ChunkStore) -> None:
    later = SWARM.publish(small_model(3), version=1, incarnation=2)
    store.begin(later)
    fill(store, NEXT, NEXT_FILES)
    store.begin(SIGNED)
    store.pin(NEXT.hash)
    assert [(str(one.version), one.complete, one.pinned) for one in store.versions()] == [
        ("1.1", False, False),
        ("1.2", True, True),
        ("2.1", False, False),
    ]
    full = store.versions()[1]
    assert full.held_bytes == full.total_bytes == sum(map(len, NEXT_FILES.values()))


def test_the_quota_is_asked_before_a_byte_is_written(tmp_path: Path) -> None:
    total = SIGNED.manifest.total_bytes
    with ChunkStore.open(tmp_path / "store", SWARM.authority, quota_bytes=total) as store:
        fill(store, SIGNED, FILES)
        with store.hold(SIGNED.hash):
            with pytest.raises(
                StoreFull, match=f"needs {NEXT.manifest.total_bytes} bytes in addition to the {total} in use"
            ):
                store.begin(NEXT)
            with pytest.raises(StoreFull):
                store.adopt(NEXT, write_model(tmp_path / "export", NEXT_FILES))
            assert [held.hash for held in store.versions()] == [SIGNED.hash]
            assert len(list((store.root / "versions").iterdir())) == 1
            assert model_files(store.directory(SIGNED.hash)) == FILES
        store.begin(NEXT)
        assert [held.hash for held in store.versions()] == [NEXT.hash]


def test_a_refusal_names_the_quota_that_would_do(tmp_path: Path) -> None:
    files = {"a.txt": os.urandom(3_100_000)}
    large = SWARM.publish(files, version=3, chunk_bytes=1 << 20)
    with (
        ChunkStore.open(tmp_path / "store", SWARM.authority, quota_bytes=3_000_000) as store,
        pytest.raises(StoreFull, match=r"Set \[store\] quota_gb to 0.01 or more\.$"),
    ):
        store.begin(large)
    with ChunkStore.open(tmp_path / "store", SWARM.authority, quota_bytes=10_000_000) as store:
        store.begin(large)


def test_a_smaller_quota_holds_at_once_and_a_larger_one_makes_room(tmp_path: Path) -> None:
    third_files = small_model(3)
    third = SWARM.publish(third_files, version=3)
    total = SIGNED.manifest.total_bytes
    with ChunkStore.open(tmp_path / "store", SWARM.authority, quota_bytes=100 * total) as store:
        fill(store, SIGNED, FILES)
        fill(store, NEXT, NEXT_FILES)
        store.begin(third)
        store.limit(1)
        assert [held.hash for held in store.versions()] == [NEXT.hash, third.hash], "the newest, and one being fetched"
        assert len(list((store.root / "versions").iterdir())) == 2
        assert model_files(store.directory(NEXT.hash)) == NEXT_FILES
        fourth = SWARM.publish(small_model(4), version=4)
        with pytest.raises(StoreFull, match=r"may take only 1\. Set"):
            store.begin(fourth)
        store.limit(100 * total)
        store.begin(fourth)
        assert len(store.versions()) == 3


def test_room_is_made_by_the_oldest_that_nobody_needs(tmp_path: Path) -> None:
    later_files = {number: small_model(number) for number in (3, 4)}
    later = {n: SWARM.publish(files, version=n, patches={SIGNED.hash: b"patch"}) for n, files in later_files.items()}
    quota = 3 * NEXT.manifest.total_bytes
    with ChunkStore.open(tmp_path / "store", SWARM.authority, quota_bytes=quota) as store:
        fill(store, SIGNED, FILES)
        fill(store, NEXT, NEXT_FILES)
        fill(store, later[3], later_files[3])
        store.pin(later[3].hash)
        store.begin(later[4])
        assert {held.hash for held in store.versions()} == {SIGNED.hash, later[3].hash, later[4].hash}
        assert len(list((store.root / "versions").iterdir())) == 3
    with ChunkStore.open(tmp_path / "store", SWARM.authority, quota_bytes=quota) as store:
        assert len(store.versions()) == 3


def test_a_full_disk_makes_room_as_a_quota_does(
    store: ChunkStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fallocate = os.posix_fallocate

    def full_while_two_are_here(handle: int, offset: int, size: int) -> None:
        if len(list((store.root / "versions").glob("[0-9a-f]*"))) > 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        fallocate(handle, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", full_while_two_are_here)
    fill(store, SIGNED, FILES)
    fill(store, NEXT, NEXT_FILES)
    third = SWARM.publish(small_model(3), version=3)
    store.begin(third)
    assert [held.hash for held in store.versions()] == [NEXT.hash, third.hash]
    with store.hold(NEXT.hash), store.hold(third.hash), pytest.raises(StoreFull, match="Free some space"):
        store.begin(SIGNED)
    assert [held.hash for held in store.versions()] == [NEXT.hash, third.hash]


def test_a_disk_that_is_too_small_costs_nobody_its_place(store: ChunkStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    fill(store, SIGNED, FILES)
    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 99, 1))
    large = SWARM.publish({"a.txt": os.urandom(2 * SIGNED.manifest.total_bytes)}, version=3)
    with pytest.raises(StoreFull):
        store.begin(large)
    assert [held.hash for held in store.versions()] == [SIGNED.hash]


# Restarting.


def test_everything_is_there_after_a_restart(store: ChunkStore) -> None:
    fill(store, SIGNED, FILES)
    store.begin(NEXT)
    put(store, NEXT.manifest.files[1].chunks[-1], NEXT)
    missing = store.missing(NEXT.hash)
    store.remember_genesis(SWARM.genesis)
    store.remember_newest(b"announcement")
    with reopened(store) as again:
        assert model_files(again.directory(SIGNED.hash)) == FILES
        assert again.missing(NEXT.hash) == missing
        assert again.manifest(NEXT.hash) == NEXT
        assert again.manifest_bytes(SIGNED.hash) == SIGNED.raw
        assert (again.genesis(), again.newest()) == (SWARM.genesis, b"announcement")


def test_a_new_store_remembers_nothing(store: ChunkStore) -> None:
    assert store.genesis() is None
    assert store.newest() is None
    assert store.versions() == []


def test_damage_in_a_part_is_found_when_it_is_resumed(store: ChunkStore) -> None:
    store.begin(SIGNED)
    for index in range(NUM_CHUNKS):
        put(store, index)
    damage(store.root / "versions" / f"{SIGNED.hash.hex()}.part" / "config.json", 3)
    with reopened(store) as again:
        assert again.missing(SIGNED.hash) == [0]
        assert model_files(fill(again, SIGNED, FILES)) == FILES


@pytest.mark.parametrize("hint", [None, b"", b"\xff" * 1000, b"\xff" * -(-NUM_CHUNKS // 8)])
def test_the_bitmap_on_disk_is_only_a_hint(store: ChunkStore, hint: bytes | None) -> None:
    store.begin(SIGNED)
    for index in (1, 4):
        put(store, index)
    path = store.root / "versions" / f"{SIGNED.hash.hex()}.part" / ".have"
    path.unlink() if hint is None else path.write_bytes(hint)
    with reopened(store) as again:  # lost or lying: all is hashed, and exactly what is there is found
        assert bits(again.have_bitmap(SIGNED.hash)) == {1, 4}


def test_a_complete_directory_without_a_file_becomes_a_part(store: ChunkStore) -> None:
    (fill(store, SIGNED, FILES) / "tokenizer.json").unlink()
    with reopened(store) as again:
        tokenizer = next(entry for entry in SIGNED.manifest.files if entry.name == "tokenizer.json")
        assert again.missing(SIGNED.hash) == sorted(set(tokenizer.chunks))
        assert model_files(fill(again, SIGNED, FILES)) == FILES


def test_versions_without_a_manifest_are_removed_and_strangers_left_alone(store: ChunkStore) -> None:
    fill(store, SIGNED, FILES)
    (store.root / "manifests" / SIGNED.hash.hex()).write_bytes(SIGNED.raw[:-1])  # as a bad disk may do
    (store.root / "versions" / "my notes").mkdir()
    (store.root / "manifests" / "README").write_text("mine")
    with reopened(store) as again:
        assert again.versions() == []
        assert [path.name for path in (store.root / "versions").iterdir()] == ["my notes"]
        assert [path.name for path in (store.root / "manifests").iterdir()] == ["README"]


# What the machine refuses.


def test_a_second_process_is_told_who_has_the_store(store: ChunkStore) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom swarm.store import ChunkStore, StoreLocked\n"
        "from tests.support.store_fixture import small_swarm\n"
        "try:\n    ChunkStore.open(Path(sys.argv[1]), small_swarm().authority)\n"
        "except StoreLocked as error:\n    print(error)\n"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(store.root)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert f"in use by process {os.getpid()}" in said
    with pytest.raises(StoreLocked):
        ChunkStore.open(store.root, SWARM.authority)


def test_a_closed_store_can_be_opened_by_another(store: ChunkStore) -> None:
    store.close()
    store.close()
    ChunkStore.open(store.root, SWARM.authority).close()


def test_another_swarms_store_is_refused_and_left_as_it_is(store: ChunkStore) -> None:
    fill(store, SIGNED, FILES)
    store.close()
    stranger = small_swarm("stranger").authority
    with pytest.raises(StoreForeign, match="wrong_swarm"):  # by a manifest
        ChunkStore.open(store.root, stranger)
    with ChunkStore.open(store.root, SWARM.authority) as again:
        again.remember_genesis(SWARM.genesis)
        assert again.is_complete(SIGNED.hash)
        again.evict(())
    with pytest.raises(StoreForeign, match="another swarm"):  # by the genesis
        ChunkStore.open(store.root, stranger)


@pytest.mark.parametrize("below", ["file", "file/store"])
def test_a_root_that_cannot_be_a_directory_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreUnwritable, match=r"Cannot write .*file.*choose another directory"):
        ChunkStore.open(tmp_path / below, SWARM.authority)


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_root_without_permission_is_named(tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    with pytest.raises(StoreUnwritable, match="Give this user the right to write"):
        ChunkStore.open(tmp_path / "locked" / "store", SWARM.authority)


FULL = """
import resource, sys
from pathlib import Path
from swarm.store import ChunkStore, StoreFull
from tests.support.store_fixture import fill, small_model, small_swarm

swarm, small, large = small_swarm(), {"a.txt": b"x" * 700}, {"a.txt": bytes(700), "b.txt": b"y" * 9000}
with ChunkStore.open(Path(sys.argv[1]), swarm.authority) as store:
    fill(store, swarm.publish(small), small)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    try:
        store.begin(swarm.publish(large, version=2))
    except StoreFull as error:
        print(error)
"""


def test_a_file_the_system_will_not_take_leaves_no_trace(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert f"No room left below {tmp_path}" in said
    assert len(list((tmp_path / "versions").iterdir())) == len(list((tmp_path / "manifests").iterdir())) == 1
    with ChunkStore.open(tmp_path, SWARM.authority) as store:
        assert [held.complete for held in store.versions()] == [True]


@pytest.mark.root
@pytest.mark.skipif(os.getuid() != 0, reason="needs root to mount a small disk")
def test_a_full_disk_leaves_the_old_version_in_service(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("this machine does not let root mount")
    try:
        with ChunkStore.open(disk, SWARM.authority) as store:
            fill(store, SIGNED, FILES)
            files = {"a.txt": os.urandom(300_000)}
            large = SWARM.publish(files, version=2, chunk_bytes=4096)
            with pytest.raises(StoreFull, match="Free some space there"):
                store.begin(large)
            with pytest.raises(StoreFull):
                store.adopt(large, write_model(tmp_path / "export", files))
            assert [held.hash for held in store.versions()] == [SIGNED.hash]
            assert len(list((disk / "versions").iterdir())) == 1
            assert model_files(store.directory(SIGNED.hash)) == FILES
    finally:
        subprocess.run(["umount", disk], check=True)


def test_data_is_on_the_disk_before_a_version_is_called_complete(
    store: ChunkStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    fsync, rename = os.fsync, os.rename

    def note_fsync(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    def note_rename(source: Path, target: Path) -> None:
        if Path(target).name in (SIGNED.hash.hex(), NEXT.hash.hex()) and Path(target).parent.name == "versions":
            assert {str(Path(source) / name) for name in FILES} | {str(source)} <= set(synced)
            synced.clear()
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    fill(store, SIGNED, FILES)
    assert synced == [str(store.root / "versions")]  # nothing since the rename but the directory it happened in
    store.adopt(NEXT, write_model(tmp_path / "export", NEXT_FILES))
    assert synced == [str(store.root / "versions")]
