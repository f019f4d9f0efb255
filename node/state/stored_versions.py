"""Versions in a store that are complete."""

from __future__ import annotations

from pathlib import Path

from learner.artifacts.regular_file import read_file
from node.state.learner_state import genesis_at
from protocol.core.errors import PeerError
from protocol.versions.manifest import SignedManifest, open_manifest


def complete_versions(store: Path) -> list[SignedManifest]:
    """Complete versions in a store that may be in use, oldest first. Those of damaged manifests are passed over."""
    return sorted((one for one in _opened(store).values() if one is not None), key=lambda signed: signed.version)


def about_damaged_manifests(store: Path) -> str:
    """A sentence that names the manifests whose versions `complete_versions` passes over, "" if there are none."""
    damaged = [str(path) for path, signed in _opened(store).items() if signed is None]
    if not damaged:
        return ""
    versions = "its version is" if len(damaged) == 1 else "their versions are"
    return (
        f"{' and '.join(damaged)} cannot be read, so {versions} passed over. Start the learner or node once, which "
        "mends its store."
    )


def _opened(store: Path) -> dict[Path, SignedManifest | None]:
    """By the file of its manifest every version whose files are complete; None where the manifest is damaged."""
    genesis = store / "genesis"
    if not genesis.exists():
        return {}
    authority = genesis_at(genesis)[1]
    found: dict[Path, SignedManifest | None] = {}
    for path in sorted((store / "manifests").iterdir()):
        if (store / "versions" / path.name).is_dir():
            try:
                found[path] = open_manifest(read_file(path, MAX_MANIFEST_FILE_BYTES), authority)
            except FileNotFoundError:  # evicted at this moment
                continue
            except (PeerError, OSError):
                found[path] = None
    return found


def newest_complete(store: Path) -> SignedManifest | None:
    """The newest complete version in a store, None when there is none."""
    return next(reversed(complete_versions(store)), None)


MAX_MANIFEST_FILE_BYTES = 64 << 20
"""Of a manifest in a store: as many as the largest that is taken (`protocol/core/limits.py`)."""
