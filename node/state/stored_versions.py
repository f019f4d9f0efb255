"""Versions in a store that are complete."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from learner.artifacts.regular_file import read_file
from node.state.learner_state import genesis_at
from protocol.core.errors import PeerError
from protocol.versions.manifest import SignedManifest, open_manifest


@dataclass(frozen=True, kw_only=True)
class StoredVersions:
    """Versions whose files are complete: those whose manifests could be read, oldest first, and the files of the other
    manifests."""

    complete: Sequence[SignedManifest] = ()
    damaged: Sequence[Path] = ()

    @property
    def about_damaged(self) -> str:
        """A sentence that names the manifests whose versions are passed over, "" if there are none."""
        if not self.damaged:
            return ""
        versions = "its version is" if len(self.damaged) == 1 else "their versions are"
        return (
            f"{' and '.join(map(str, self.damaged))} cannot be read, so {versions} passed over. Start the learner or "
            "node once, which mends its store."
        )


def stored_versions(store: Path) -> StoredVersions:
    """What is in a store that may be in use."""
    genesis = store / "genesis"
    if not genesis.exists():
        return StoredVersions()
    authority = genesis_at(genesis)[1]
    complete, damaged = list[SignedManifest](), list[Path]()
    for path in sorted((store / "manifests").iterdir()):
        if (store / "versions" / path.name).is_dir():
            try:
                complete.append(open_manifest(read_file(path, MAX_MANIFEST_FILE_BYTES), authority))
            except FileNotFoundError:  # evicted at this moment
                continue
            except (PeerError, OSError):
                damaged.append(path)
    return StoredVersions(complete=sorted(complete, key=lambda signed: signed.version), damaged=damaged)


def complete_versions(store: Path) -> Sequence[SignedManifest]:
    """Complete versions in a store that may be in use, oldest first. Those of damaged manifests are passed over."""
    return stored_versions(store).complete


def newest_complete(store: Path) -> SignedManifest | None:
    """The newest complete version in a store, None when there is none."""
    return next(reversed(complete_versions(store)), None)


MAX_MANIFEST_FILE_BYTES = 64 << 20
"""Of a manifest in a store: as many as the largest that is taken (`protocol/core/limits.py`)."""
