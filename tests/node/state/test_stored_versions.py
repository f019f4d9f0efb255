"""Find the versions of a store that can be used, and the reasons against the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.state.stored_versions import complete_versions, newest_complete, stored_versions
from protocol.versions.manifest import SignedManifest
from swarm.store import ChunkStore
from tests.support.store_fixture import fill, small_model, small_swarm

SWARM = small_swarm()


@pytest.fixture
def held(tmp_path: Path) -> list[SignedManifest]:
    """Three versions in `tmp_path / "store"`, oldest first."""
    with ChunkStore.open(tmp_path / "store", SWARM.authority) as store:
        signed = [SWARM.publish(small_model(number), version=number) for number in (1, 2, 3)]
        for number, one in enumerate(signed, start=1):
            fill(store, one, small_model(number))
    (tmp_path / "store" / "genesis").write_bytes(SWARM.genesis)
    return signed


def manifest(store: Path, signed: SignedManifest) -> Path:
    return store / "manifests" / signed.hash.hex()


def test_sound_ones_are_told_oldest_first(tmp_path: Path, held: list[SignedManifest]) -> None:
    assert [one.hash for one in complete_versions(tmp_path / "store")] == [one.hash for one in held]
    assert stored_versions(tmp_path / "store").about_damaged == ""


@pytest.mark.parametrize("byte", [0, 61, -1])
def test_a_damaged_manifest_is_passed_over_and_named(tmp_path: Path, held: list[SignedManifest], byte: int) -> None:
    path = manifest(tmp_path / "store", held[-1])
    raw = bytearray(path.read_bytes())
    raw[byte] ^= 16
    path.write_bytes(raw)
    newest = newest_complete(tmp_path / "store")
    assert newest is not None
    assert newest.hash == held[1].hash
    assert stored_versions(tmp_path / "store").about_damaged == (
        f"{path} cannot be read, so its version is skipped. Start the learner or node once, which repairs its store."
    )


def test_two_of_them_are_both_named(tmp_path: Path, held: list[SignedManifest]) -> None:
    paths = sorted(manifest(tmp_path / "store", one) for one in held[1:])
    for path in paths:
        path.write_bytes(b"")
    said = stored_versions(tmp_path / "store").about_damaged
    assert said.startswith(f"{paths[0]} and {paths[1]} cannot be read, so their versions are skipped.")


def test_what_was_evicted_is_not_damaged(tmp_path: Path, held: list[SignedManifest]) -> None:
    manifest(tmp_path / "store", held[-1]).unlink()
    assert stored_versions(tmp_path / "store").about_damaged == ""
    assert stored_versions(tmp_path / "nothing").about_damaged == ""
