"""Sort the requests that arrive from the node by what must be done with them, until they are taken."""

from __future__ import annotations

import os
import threading
from collections import deque
from typing import BinaryIO

from protocol.core.pipe import Arrays, Header

from ..common_worker.reader import start_reading


class Intake:
    """Requests that have arrived and were not taken yet. A thread fills it, and ends the process with the stream."""

    def __init__(self, stream: BinaryIO) -> None:
        self._changed = threading.Condition()
        self._short: deque[tuple[Header, Arrays]] = deque()
        self._generates: deque[tuple[Header, Arrays]] = deque()
        self._cancelled: set[int] = set()
        self._interrupts: deque[int] = deque()
        start_reading(stream, self._take_frame, lambda: os._exit(0))

    def wait(self) -> None:
        """Wait until there is something to take."""
        with self._changed:
            self._changed.wait_for(lambda: self._short or self._generates or self._interrupts)

    def take_short(self) -> list[tuple[Header, Arrays]]:
        return self._take(self._short)

    def take_generates(self) -> list[tuple[Header, Arrays]]:
        return self._take(self._generates)

    def take_cancelled(self) -> set[int]:
        """Return the ids of requests whose callers have left, each once. Cheap if there are none."""
        if not self._cancelled:
            return set()
        with self._changed:
            cancelled, self._cancelled = self._cancelled, set()
            return cancelled

    def take_interrupts(self) -> list[int]:
        """Return the ids of requests to interrupt the generation, each once. Cheap if there are none."""
        if not self._interrupts:
            return []
        with self._changed:
            ids = list(self._interrupts)
            self._interrupts.clear()
            return ids

    def _take(self, queue: deque[tuple[Header, Arrays]]) -> list[tuple[Header, Arrays]]:
        with self._changed:
            frames = list(queue)
            queue.clear()
            return frames

    def _take_frame(self, header: Header, arrays: Arrays) -> None:
        with self._changed:
            self._file(header, arrays)
            self._changed.notify()

    def _file(self, header: Header, arrays: Arrays) -> None:
        match header["op"]:
            case "generate":
                self._generates.append((header, arrays))
            case "cancel":
                self._cancelled.add(header["target"])
            case "interrupt":
                self._interrupts.append(header["id"])
            case _:
                self._short.append((header, arrays))
