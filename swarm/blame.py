"""Who is told when another peer did something wrong."""

from __future__ import annotations

from collections.abc import Callable

from protocol.core.errors import Fault
from protocol.core.ids import PeerId

Report = Callable[[PeerId, Fault, str], None]
"""Told of a peer's fault: who, what kind, and a sentence."""


def unreported(peer: PeerId, fault: Fault, detail: str) -> None:
    """A `Report` for those who keep none."""
