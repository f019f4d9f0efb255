"""Files of a served version stay whatever the store does, and none is left behind."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from node.engine.interface import InstalledVersion
from node.runtime.errors import RunError
from node.serving.kept_versions import KeptVersions, VersionGone, open_kept
from node.serving.sources import Candidate
from tests.support.store_fixture import small_model, small_swarm


@pytest.fixture
def candidate(tmp_path: Path) -> Candidate:
    files = small_model(1)
    signed = small_swarm().publish(files)
    directory = tmp_path / "store" / "versions" / signed.hash.hex()
    directory.mkdir(parents=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    version = InstalledVersion(name=signed.version, manifest=signed.hash)
    return Candidate(version=version, label="1.1", directory=directory, created_s=0, signed=signed)


def test_what_is_kept_outlives_the_store_and_goes_at_the_end(candidate: Candidate, tmp_path: Path) -> None:
    root = tmp_path / "serving"
    with open_kept(root) as kept:
        place = kept.keep(candidate)
        shutil.rmtree(candidate.directory)
        assert {file.name: file.read_bytes() for file in place.iterdir()} == small_model(1)
        assert kept.place_of(candidate) == place
        kept.forget(candidate)
        assert not place.exists()
    assert not root.exists()


def test_what_a_killed_process_left_is_removed_and_that_of_another_is_not(candidate: Candidate, tmp_path: Path) -> None:
    root = tmp_path / "serving"
    left = root / "1234567"
    left.mkdir(parents=True)
    (left / "lock").touch()
    (left / "weights").touch()
    with open_kept(root) as first:
        assert not left.exists()
        place = first.keep(candidate)
        with open_kept(root):  # opened by this very process, which holds the lock
            assert place.exists()


def test_a_version_that_is_not_whole_is_refused(candidate: Candidate, tmp_path: Path) -> None:
    file = candidate.directory / "model.safetensors"
    with open_kept(tmp_path / "serving") as kept:
        os.truncate(file, 10)
        with pytest.raises(RunError, match=r"model\.safetensors has 10 bytes"):
            kept.keep(candidate)
        file.unlink()
        with pytest.raises(VersionGone):
            kept.keep(candidate)


def test_without_links_the_store_itself_is_served(
    candidate: Candidate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert KeptVersions(root=None).keep(candidate) == candidate.directory
    blocked = tmp_path / "file"
    blocked.touch()
    with open_kept(blocked / "serving") as kept:
        assert kept.keep(candidate) == candidate.directory
