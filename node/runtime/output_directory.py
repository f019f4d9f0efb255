"""A directory for the results of a program that makes everything anew: what is there is replaced only if it was made by
the same program, which is told by a file in it."""

from __future__ import annotations

import shutil
from pathlib import Path

from node.runtime.atomic_files import cannot_write
from node.runtime.errors import UsageError


def prepare(out: Path, what: str) -> None:
    """Make `out` an empty directory of a `what`'s. Raises UsageError when something else is there, and RunError."""
    marker = out / f".volery-{what}"
    try:
        if out.exists() and not marker.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(
                f"{out} exists and was not made by a {what}; it was not touched. Name another directory after --out."
            )
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        marker.touch()
    except OSError as error:
        raise cannot_write(out, "--out", error, named="directory") from None
