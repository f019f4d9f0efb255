"""Find the complete versions in a store."""

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
    """Versions whose files are complete: those whose manifests could be read, oldest first, and the paths of the
    manifests that could not."""

    complete: Sequence[SignedManifest] = ()
    damaged: Sequence[Path] = ()

    @property
    def about_damaged(self) -> str:
        """Return a sentence that names the damaged manifests, whose versions are skipped; "" if there are none."""
        if not self.damaged:
            return ""
        versions = "its version is" if len(self.damaged) == 1 else "their versions are"
        return (
            f"{' and '.join(map(str, self.damaged))} cannot be read, so {versions} skipped. Start the learner or "
            "node once, which repairs its store."
        )


def stored_versions(store: Path) -> StoredVersions:
    """Return the versions in a store that may be in use."""
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
    """Return the complete versions in a store that may be in use, oldest first, without those of damaged manifests."""
    return stored_versions(store).complete


def newest_complete(store: Path) -> SignedManifest | None:
    """Return the newest complete version in a store; None if there is none."""
    return next(reversed(complete_versions(store)), None)


MAX_MANIFEST_FILE_BYTES = 64 << 20
"""Most bytes of a manifest in a store: the size of the largest that is accepted (`protocol/core/limits.py`)."""
