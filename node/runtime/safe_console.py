"""A rich console on which text of a stranger can do nothing: the one sink of all that is drawn.

What we draw ourselves (colours, the cursor of the live view) comes as styles and control segments. Whatever is text by
then is made harmless, so that no call site can forget it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.segment import Segment

from protocol.core.visible import visible


class HarmlessConsole(Console):
    """See the module's paragraph."""

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        return super()._render_buffer(
            segment if segment.control else Segment(visible(segment.text), segment.style) for segment in buffer
        )
