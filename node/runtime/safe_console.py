"""Draw on a rich console on which text of strangers is harmless.

This is the only sink of everything that is drawn. Our own drawing (colours, the cursor of the live view) comes as
styles and control segments. All text is made harmless here, so that no call site can forget it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.segment import Segment

from protocol.core.visible import visible


class HarmlessConsole(Console):
    """A rich console that makes all text harmless."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            segment if segment.control else Segment(visible(segment.text), segment.style) for segment in buffer
        )
