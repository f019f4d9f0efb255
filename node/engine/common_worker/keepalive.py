"""How a worker that is asked for something long says that it goes on.

What always holds: the node hears of it every ALIVE_S or seldomer, however short the steps; what hangs says nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from protocol.core.pipe import Header

ALIVE_S = 10.0


class Alive:
    """Sends an event now and then."""

    def __init__(self, send: Callable[[Header], None]) -> None:
        self._send = send
        self._said_s = time.monotonic()

    def step(self) -> None:
        """To be called before every step of the work."""
        now_s = time.monotonic()
        if now_s - self._said_s >= ALIVE_S:
            self._said_s = now_s
            self._send({"event": "alive"})
