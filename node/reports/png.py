"""A figure to a PNG file, whole or not at all.

What always holds: `path` is the new picture, or what it was; nothing else is left beside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write_png(figure: Figure, path: Path) -> None:
    """Write `figure` to `path`. Raises OSError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        figure.savefig(partial, format="png", metadata={"Software": None})
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
