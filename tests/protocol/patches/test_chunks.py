"""A patch among the chunks of a manifest: cut, listed, read back, applied, and every rebuilt chunk the manifest's."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.core.digest import cid_of
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import Cid, ManifestHash
from protocol.core.limits import KIB
from protocol.patches.chunks import patch_source, with_patches
from protocol.patches.patch import apply_patch, encode_patch
from protocol.versions.chunking import Source, Tables, changed_chunks, chunk_size_for, file_chunks, placements
from protocol.versions.manifest import Manifest, PatchEntry, SignedManifest, sign_manifest
from protocol.versions.safetensors_header import LayoutError
from tests.support.chunks import describe
from tests.support.store_fixture import CHUNK_BYTES, small_model, small_swarm, source

SWARM = small_swarm()
BASE = ManifestHash(b"\x8a" * 32)
OLD, NEW = small_model(1), small_model(2)


def sources(files: dict[str, bytes]) -> list[Source]:
    return [source(name, data) for name, data in files.items()]


def published(patches: dict[ManifestHash, bytes], files: dict[str, bytes] = NEW) -> tuple[SignedManifest, Tables]:
    """A manifest of `files` that offers `patches`, and the tables without them."""
    plain = describe(sources(files), chunk_bytes=CHUNK_BYTES)
    offered = {base: source("patch", data) for base, data in patches.items()}
    tables = with_patches(plain, offered, chunk_bytes=CHUNK_BYTES)
    bare = SWARM.publish(files, version=2).manifest
    manifest = msgspec.structs.replace(
        bare, files=tables.files, chunks=tables.chunks, tensors=tables.tensors, patches=tables.patches
    )
    return sign_manifest(SWARM.learner, SWARM.authority, manifest), plain


class Chunks:
    """Chunks by name, and which were asked for, in order."""

    def __init__(self, manifest: Manifest, entry: PatchEntry, data: bytes) -> None:
        self.asked: list[Cid] = []
        self._held: dict[Cid, bytes] = {}
        for index in entry.chunks:
            size = manifest.chunks[index].size
            self._held[cid_of(data[:size])], data = data[:size], data[size:]
        assert not data

    def __call__(self, cid: Cid) -> bytes:
        self.asked.append(cid)
        return self._held[cid]


def test_a_version_is_made_of_the_one_before_and_the_chunks_of_a_patch() -> None:
    patch = b"".join(encode_patch(sources(OLD), sources(NEW)))
    signed, _ = published({BASE: patch})
    manifest, entry = signed.manifest, signed.manifest.patches[0]
    assert entry.base_hash == BASE
    chunks = Chunks(manifest, entry, patch)
    rebuilt = {name: bytearray() for name in NEW}
    sizes = {file.name: file.size for file in manifest.files}
    for piece in apply_patch(sources(OLD), patch_source(manifest, entry, chunks), sizes):
        rebuilt[piece.file] += piece.data
    for index, places in enumerate(placements(manifest)):
        for place in places:
            data = rebuilt[manifest.files[place.file].name]
            assert (
                cid_of(data[place.offset : place.offset + manifest.chunks[index].size]) == manifest.chunks[index].name
            )
    assert chunks.asked == [manifest.chunks[index].name for index in entry.chunks], "each once, in order"


def test_patches_change_nothing_about_the_files() -> None:
    signed, plain = published({BASE: bytes(range(256)) * 5, ManifestHash(bytes(32)): b"small"})
    manifest = signed.manifest
    assert (manifest.files, manifest.tensors) == (plain.files, plain.tensors)
    assert manifest.chunks[: len(plain.chunks)] == plain.chunks
    assert manifest.total_bytes == sum(map(len, NEW.values()))
    assert file_chunks(manifest) == list(range(len(plain.chunks)))
    bare = SWARM.publish(NEW, version=2).manifest
    assert changed_chunks(bare, manifest) == []
    assert changed_chunks(manifest, bare) == []


def test_what_a_patch_holds_is_not_held_of_the_files() -> None:
    """Its chunks may be equal to those of files; but who has an old version has its files, and no patches."""
    files = {"a.txt": bytes(range(200))}
    before, _ = published({BASE: files["a.txt"]}, {"b.txt": b"other"})
    after, _ = published({}, files)
    assert changed_chunks(before.manifest, after.manifest) == [0]


def test_equal_chunks_are_listed_once_and_patches_share_them() -> None:
    signed, plain = published({BASE: bytes(4 * CHUNK_BYTES), ManifestHash(bytes(32)): bytes(CHUNK_BYTES)})
    first, second = signed.manifest.patches
    assert first.chunks == [len(plain.chunks)] * 4
    assert second.chunks == first.chunks[:1]


def test_a_patch_is_cut_as_a_model_of_its_size() -> None:
    tables = Tables(files=[], chunks=[], tensors=[])
    size = 100 * KIB
    (entry,) = with_patches(tables, {BASE: source("patch", bytes(size - 1) + b"x")}).patches
    assert len(entry.chunks) == -(-size // chunk_size_for(size))
    assert entry.size == size


def test_a_patch_that_ends_early_is_not_published() -> None:
    short = Source(name="patch", size=10, read=lambda offset, size: b"")
    with pytest.raises(LayoutError, match="patch: ends at byte 0"):
        with_patches(Tables(files=[], chunks=[], tensors=[]), {BASE: short})


@given(st.binary(min_size=1, max_size=1500), st.integers(0, 1600), st.integers(0, 1600))
def test_any_part_can_be_read(data: bytes, offset: int, size: int) -> None:
    signed, _ = published({BASE: data})
    manifest, entry = signed.manifest, signed.manifest.patches[0]
    read = patch_source(manifest, entry, Chunks(manifest, entry, data)).read
    assert bytes(read(offset, size)) == data[offset : offset + size]


def test_a_chunk_of_another_size_than_listed_is_the_manifests_fault() -> None:
    signed, _ = published({BASE: bytes(range(100))})
    read = patch_source(signed.manifest, signed.manifest.patches[0], lambda cid: b"").read
    with pytest.raises(PeerError, match="0 bytes, not the stated 100") as caught:
        read(0, 1)
    assert caught.value.fault is Fault.MALFORMED
