"""Pictures: drawn without pyplot, and written to a PNG file whole or not at all.

What always holds: what a peer calls itself is drawn as it stands. It is no formula, whatever dollars are in it, and
letters that the font lacks are boxes and no warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from node.runtime.atomic_files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZE_IN = (12.0, 7.0)
DPI = 100


def draw_png(path: Path, draw: Callable[[Figure], object], *, size_in: tuple[float, float] = SIZE_IN) -> None:
    """Let `draw` fill a figure, and write it to `path`. Raises OSError."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Text asks for the setting when it is made, and marks of an axis are made when they are drawn.
    with rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=size_in, dpi=DPI, facecolor="white")
        FigureCanvasAgg(figure)
        draw(figure)
        write_whole(path, lambda partial: figure.savefig(partial, format="png", metadata={"Software": None}))
