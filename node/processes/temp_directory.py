"""The directory of a child's temporary files: empty whenever the child starts, gone once it has ended.

What always holds: what a kill left there, of the child or of the node, goes before the next child starts; nothing
outside the directory is touched, whatever links lie in it. Where it is, is for one child alone: whoever opens the child
holds the lock of the state directory around it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

FOLDER = "tmp"
"""Within a state directory; in it, one directory for each child that has temporary files."""


def make_empty(directory: Path) -> None:
    """Make `directory` anew, for us alone. Raises OSError when that cannot be.

    A child of before may live a moment longer than its node, and write: what it adds meanwhile goes the next time.
    """
    remove(directory)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)


def remove(directory: Path) -> None:
    """Remove `directory` and what is in it, as far as that can be done."""
    shutil.rmtree(directory, ignore_errors=True)


def environment(directory: Path | None) -> Mapping[str, str]:
    """What tells libraries to put their temporary files there, and workers of ours, whose libraries may not, by
    VOLERY_SCRATCH; nothing when there is no such directory."""
    if directory is None:
        return {}
    return dict.fromkeys(("TMPDIR", "VOLERY_SCRATCH"), str(directory.absolute()))
