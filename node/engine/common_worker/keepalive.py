"""Tell the node during a long request that the worker is still alive.

Invariants:

- The node receives an event at most every ALIVE_S, however short the steps are.
- A step that hangs sends none.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from protocol.core.pipe import Header

ALIVE_S = 10.0


class Alive:
    """Sends an event to the node from time to time."""

    def __init__(self, send: Callable[[Header], None]) -> None:
        self._send = send
        self._said_s = time.monotonic()

    def step(self) -> None:
        """Send an event if ALIVE_S have passed since the last one. To be called before every step of the work."""
        now_s = time.monotonic()
        if now_s - self._said_s >= ALIVE_S:
            self._said_s = now_s
            self._send({"event": "alive"})
