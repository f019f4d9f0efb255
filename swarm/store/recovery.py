"""Recover a store that an earlier process left behind at any moment, for `ChunkStore.open`.

Invariants:

- Only unusable files of the store itself are removed: scratch files, manifests without a version, and versions without
  a manifest.
- A directory of another swarm is refused before anything in it is changed.
"""

from __future__ import annotations

import re
from pathlib import Path

from protocol.core.digest import digest_of
from protocol.core.errors import PeerError
from protocol.core.genesis import Authority
from protocol.core.ids import ManifestHash
from protocol.versions.manifest import SignedManifest, open_manifest
from swarm.store.durable_io import read_regular, remove_scratch, scratch_path
from swarm.store.errors import StoreForeign
from swarm.store.version_directory import HINT_NAME, PART_SUFFIX, Stage, Version, directory_of

_HASH = re.compile(r"[0-9a-f]{64}")


def require_ours(root: Path, authority: Authority) -> None:
    """Raise StoreForeign if the genesis in `root` is not that of `authority`."""
    try:
        genesis = read_regular(root / "genesis")
    except FileNotFoundError:
        return
    if digest_of(genesis) != bytes(authority.swarm):
        raise _foreign(root, "it belongs to another swarm")


def recover(root: Path, authority: Authority) -> dict[ManifestHash, Version]:
    """Return the versions in `root`. Partial ones are resumed: their chunks are hashed, about a second per GiB."""
    manifests, versions = root / "manifests", root / "versions"
    signed = _read_manifests(manifests, authority)
    for directory in (root, manifests, versions):
        remove_scratch(directory)
    recovered = (_recover_version(manifest, versions) for manifest in signed.values())
    found = {version.signed.hash: version for version in recovered if version is not None}
    for directory in (manifests, versions):
        _remove_orphans(directory, {name.hex() for name in found})
    return found


def _read_manifests(directory: Path, authority: Authority) -> dict[str, SignedManifest]:
    manifests = {}
    for path in directory.iterdir():
        if _HASH.fullmatch(path.name) is None:
            continue
        raw = read_regular(path)
        if digest_of(raw).hex() != path.name:
            continue  # the disk damaged it, so it and its version are removed as orphans
        try:
            manifests[path.name] = open_manifest(raw, authority)
        except PeerError as error:
            raise _foreign(directory.parent, f"manifest {path.name[:8]} is not one of this swarm's: {error}") from error
    return manifests


def _recover_version(signed: SignedManifest, versions: Path) -> Version | None:
    complete = directory_of(versions, signed, Stage.COMPLETE)
    partial = directory_of(versions, signed, Stage.PARTIAL)
    if complete.is_dir():
        if _is_sound(complete, signed):
            return Version.trust(signed, versions)
        _discard(partial)
        complete.rename(partial)
    return Version.resume(signed, versions) if partial.is_dir() else None


def _is_sound(directory: Path, signed: SignedManifest) -> bool:
    """Return whether all files have their size and no chunk went bad while the version was in use."""
    if (directory / HINT_NAME).exists():
        return False
    paths = [(directory / entry.name, entry.size) for entry in signed.manifest.files]
    return all(path.is_file() and path.stat().st_size == size for path, size in paths)


def _remove_orphans(directory: Path, found: set[str]) -> None:
    for path in directory.iterdir():
        name = path.name.removesuffix(PART_SUFFIX)
        if _HASH.fullmatch(name) is not None and name not in found:
            _discard(path)


def _discard(path: Path) -> None:
    """Rename a directory, then remove it, so that a kill in between leaves scratch files and not half a version."""
    if path.exists():
        path.rename(scratch_path(path.parent))
        remove_scratch(path.parent)


def _foreign(root: Path, why: str) -> StoreForeign:
    return StoreForeign(f"{root} cannot be used: {why}. Give this swarm a directory of its own, or move that one away.")
