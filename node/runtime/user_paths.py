"""Read a path as somebody wrote it, on a command line or in a file.


Invariants:

- No error of the system leaves this module. The code that opens the path reports what is wrong with it, and names it.
"""

from __future__ import annotations

import os
from pathlib import Path

from node.runtime.errors import UsageError, shortened


def as_path(text: str | Path) -> Path:
    """Return the path with `~` and `~user` replaced. Raises UsageError if there is no such user."""
    path = os.path.expanduser(text)
    if path.startswith("~"):
        user = path.partition(os.sep)[0]
        raise UsageError(
            f"{shortened(path)}: this machine has no user {user[1:]!r}. Write ./{user} for a file with this name."
        )
    return Path(path)


def real_path(path: Path) -> Path:
    """Return where the path leads, as far as that can be followed. Links that lead in a circle stay as they are."""
    return Path(os.path.realpath(path))
