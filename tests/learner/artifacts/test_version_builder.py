"""A directory becomes a signed manifest: all its bytes, no others, and a link to the version before."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import msgspec
import pytest

from learner.artifacts import version_builder as publication
from learner.artifacts.version_builder import Base, VersionBuilder, new_bytes
from protocol.core.digest import cid_of
from protocol.versions.manifest import ChunkRef, open_manifest
from protocol.versions.safetensors_header import LayoutError
from swarm.store import ChunkStore
from tests.support.store_fixture import model_files, nudged, patch_between, small_model, write_model
from tests.support.trainer_fixture import NOW_MS, SWARM, version


def publisher() -> VersionBuilder:
    """One that remembers nothing."""
    return VersionBuilder(learner=SWARM.learner, authority=SWARM.authority, certificate=SWARM.certificate)


PUBLISHER = publisher()


def test_the_manifest_names_exactly_the_bytes_of_the_directory(tmp_path: Path) -> None:
    files = small_model(1)
    signed = PUBLISHER.publish(write_model(tmp_path / "export", files), version("1.4"), None, NOW_MS).signed
    manifest = signed.manifest
    assert {entry.name: entry.size for entry in manifest.files} == {name: len(data) for name, data in files.items()}
    assert (manifest.version, manifest.previous, manifest.created_ms) == (version("1.4"), b"", NOW_MS)
    assert open_manifest(signed.raw, SWARM.authority).hash == signed.hash
    with ChunkStore.open(tmp_path / "store", SWARM.authority) as store:
        store.adopt(signed, tmp_path / "export")
        assert store.verify(signed.hash) == [], "every chunk hashes to its name"
        assert model_files(store.directory(signed.hash)) == files


def test_versions_form_a_chain_and_equal_directories_have_equal_chunks(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "export", small_model(1))
    first = PUBLISHER.publish(directory, version("1.4"), None, NOW_MS).signed
    again = PUBLISHER.publish(directory, version("2.4"), first.hash, NOW_MS + 1).signed
    assert again.manifest.previous == first.hash
    assert again.manifest.chunks == first.manifest.chunks
    assert again.hash != first.hash
    assert new_bytes(again.manifest, first.manifest) == 0


def test_new_bytes_are_those_of_chunks_that_the_version_before_lacks(tmp_path: Path) -> None:
    first, second = (SWARM.publish(small_model(seed), version=seed) for seed in (1, 2))
    total = sum(chunk.size for chunk in second.manifest.chunks)
    assert new_bytes(second.manifest, None) == total
    assert 0 < new_bytes(second.manifest, first.manifest) < total, "the embedding and the tokenizer are the same"
    offering = msgspec.structs.replace(
        second.manifest, chunks=[*second.manifest.chunks, ChunkRef(cid_of(b"a patch"), 7)]
    )
    for before in (None, first.manifest):
        assert new_bytes(offering, before) == new_bytes(second.manifest, before), (
            "an offered patch must not count as new bytes"
        )


def test_hidden_files_stay_at_home(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "export", small_model(1))
    (directory / ".DS_Store").write_bytes(b"x")
    signed = PUBLISHER.publish(directory, version("1.0"), None, NOW_MS).signed
    assert {entry.name for entry in signed.manifest.files} == set(small_model(1))


def test_what_cannot_be_published_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="absent"):
        PUBLISHER.publish(tmp_path / "absent", version("1.0"), None, NOW_MS)
    directory = write_model(tmp_path / "export", small_model(1))
    weights = directory / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(LayoutError, match=r"model\.safetensors"):
        PUBLISHER.publish(directory, version("1.0"), None, NOW_MS)


def test_publishing_can_be_ended_between_any_two_blocks(tmp_path: Path) -> None:
    old, new = (
        write_model(tmp_path / name, files) for name, files in (("old", small_model(1)), ("new", small_model(2)))
    )
    base = Base(manifest=publisher().publish(old, version("1.4"), None, NOW_MS).signed, directory=old)

    class Stop(BaseException):
        pass

    def publish(looks: int) -> int:
        """Publish with a patch, ended at that look; return how many there were."""
        looked = 0

        def look() -> None:
            nonlocal looked
            looked += 1
            if looked == looks:
                raise Stop

        publisher().publish(new, version("1.5"), base.manifest.hash, NOW_MS, [base], look=look)
        return looked

    looks = publish(0)
    chunks = len(base.manifest.manifest.chunks)
    assert looks > chunks, "while hashing, and while a patch is made"
    for number in (1, chunks, looks):
        with pytest.raises(Stop):
            publish(number)
    assert publish(0) == looks


def test_patches_that_are_made_side_by_side_are_those_that_are_made_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three bases has nothing in common with the version: its patch is given up while the others go on."""
    files = nudged(small_model(1))
    bases = []
    for number, model in enumerate((small_model(1), small_model(7, frozen=7), nudged(files))):
        directory = write_model(tmp_path / f"base {number}", model)
        signed = PUBLISHER.publish(directory, version(f"1.{number}"), None, NOW_MS).signed
        bases.append(Base(manifest=signed, directory=directory))
    export = write_model(tmp_path / "export", files)
    for cores in (1, 2, 3):
        monkeypatch.setattr(os, "cpu_count", lambda cores=cores: cores)
        published = PUBLISHER.publish(export, version("1.4"), None, NOW_MS, bases)
        assert [patch.base for patch in published.signed.manifest.patches] == [
            base.manifest.hash for base in (bases[0], bases[2])
        ]
        for base, path in zip((bases[0], bases[2]), published.patches, strict=True):
            assert path.read_bytes() == patch_between(model_files(base.directory), files)
        assert len(list(tmp_path.glob("export.patches/*"))) == 2
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("patch")]


@pytest.mark.parametrize(("chunks_left", "offered"), [(2, 2), (1, 1), (0, 0)])
def test_patches_that_the_manifest_has_no_room_to_list_are_not_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunks_left: int, offered: int
) -> None:
    files = small_model(1)
    bases = []
    for number, model in enumerate((files, nudged(files))):
        directory = write_model(tmp_path / f"base {number}", model)
        signed = PUBLISHER.publish(directory, version(f"1.{number}"), None, NOW_MS).signed
        bases.append(Base(manifest=signed, directory=directory))
    export = write_model(tmp_path / "export", nudged(nudged(files)))
    listed = len(PUBLISHER.publish(export, version("1.4"), None, NOW_MS).signed.manifest.chunks)
    monkeypatch.setattr(publication, "MAX_CHUNKS", listed + chunks_left)
    published = PUBLISHER.publish(export, version("1.4"), None, NOW_MS, bases)
    assert [patch.base for patch in published.signed.manifest.patches] == [
        base.manifest.hash for base in bases[:offered]
    ]
    assert len(published.signed.manifest.chunks) == listed + offered
    assert [path.exists() for path in published.patches] == [True] * offered
    assert len(list(tmp_path.glob("export.patches/*"))) == offered, "the other patches must be removed"
    assert (tmp_path / "export.patches").exists() is (offered > 0)
