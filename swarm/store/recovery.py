"""What `ChunkStore.open` makes of a directory that a process left behind, at whatever moment.

What always holds: nothing is removed but what this store made and nobody can use (scratch, manifests without a
version, versions without a manifest), and a directory of another swarm is refused before anything in it is touched.
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
    """Raise StoreForeign when the genesis kept in `root` is not that of `authority`."""
    try:
        genesis = read_regular(root / "genesis")
    except FileNotFoundError:
        return
    if digest_of(genesis) != bytes(authority.swarm):
        raise _foreign(root, "it belongs to another swarm")


def recover(root: Path, authority: Authority) -> dict[ManifestHash, Version]:
    """Return the versions in `root`, resuming the parts, whose chunks are hashed: about a second per GiB."""
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
            continue  # the disk lost it: an orphan, and so is its version
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
    """Whether all files have their size and no chunk was found bad while the version was in use."""
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
    """Rename before removing, so that a kill in between leaves scratch and not half of a version."""
    if path.exists():
        path.rename(scratch_path(path.parent))
        remove_scratch(path.parent)


def _foreign(root: Path, why: str) -> StoreForeign:
    return StoreForeign(f"{root} cannot be used: {why}. Give this swarm a directory of its own, or move that one away.")
