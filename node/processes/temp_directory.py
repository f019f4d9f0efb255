"""Manage the directory of a child's temporary files: empty whenever the child starts, gone once it has ended.

The directory belongs to one child alone, because the caller that opens the child holds the lock of the state directory.

Invariants:

- Files that a killed child or node left there go before the next child starts.
- Nothing outside the directory is touched, even if links in it lead there.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

FOLDER = "tmp"
"""Folder in a state directory. It has a directory for each child with temporary files."""


def make_empty(directory: Path) -> None:
    """Create `directory` empty, for this user only. Raises OSError if that is impossible.

    The previous child may live, and write, a moment longer than its node. Files that it adds then are removed the next
    time.
    """
    remove(directory)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)


def remove(directory: Path) -> None:
    """Remove `directory` and what is in it, as far as possible."""
    shutil.rmtree(directory, ignore_errors=True)


def environment(directory: Path | None) -> Mapping[str, str]:
    """Return variables that direct temporary files there: TMPDIR for libraries, and VOLERY_SCRATCH for our workers,
    whose libraries may not use it. Empty without a directory."""
    if directory is None:
        return {}
    return dict.fromkeys(("TMPDIR", "VOLERY_SCRATCH"), str(directory.absolute()))
