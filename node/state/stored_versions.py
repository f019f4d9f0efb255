"""Versions in a store that are complete."""

from __future__ import annotations

from pathlib import Path

from learner.artifacts.regular_file import read_file
from node.state.learner_state import genesis_at
from protocol.core.errors import PeerError
from protocol.versions.manifest import SignedManifest, open_manifest


def complete_versions(store: Path) -> list[SignedManifest]:
    """Complete versions in a store that may be in use, oldest first."""
    genesis = store / "genesis"
    if not genesis.exists():
        return []
    authority = genesis_at(genesis)[1]
    found = []
    for path in (store / "manifests").iterdir():
        if (store / "versions" / path.name).is_dir():
            try:
                found.append(open_manifest(read_file(path, MAX_MANIFEST_FILE_BYTES), authority))
            except (PeerError, OSError):
                continue
    return sorted(found, key=lambda signed: signed.version)


def newest_complete(store: Path) -> SignedManifest | None:
    """The newest complete version in a store, None when there is none."""
    return next(reversed(complete_versions(store)), None)


MAX_MANIFEST_FILE_BYTES = 64 << 20
"""Of a manifest in a store: as many as the largest that is taken (`protocol/core/limits.py`)."""
