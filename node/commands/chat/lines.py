"""Read lines of standard input from a terminal, a pipe or a file, without a thread that would delay the end.

Invariants:

- Nothing is read before it is asked for, so that the next program in a pipe finds its own input.
- A line is at most MAX_LINE_BYTES long. A longer one comes in several parts.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import trio

MAX_LINE_BYTES = 1 << 20
"""Most bytes of one line: more than any model reads."""

READ_BYTES = 1 << 16


@dataclass(kw_only=True)
class Lines:
    """Reads lines of `descriptor`, which stays open and unchanged."""

    descriptor: int = 0
    _held: bytes = b""
    _is_over: bool = False

    async def next(self) -> str | None:
        """Return the next line without its line end; None at the end of the input."""
        while b"\n" not in self._held and len(self._held) < MAX_LINE_BYTES and not self._is_over:
            data = await self._read()
            self._held += data
            self._is_over = not data
        if not self._held:
            return None
        line, _, self._held = self._cut()
        return line.decode(errors="replace").removesuffix("\r")

    def forget(self) -> None:
        """Discard what was typed of a line that is not finished."""
        self._held = b""

    def _cut(self) -> tuple[bytes, bytes, bytes]:
        if b"\n" in self._held[:MAX_LINE_BYTES]:
            return self._held.partition(b"\n")
        return self._held[:MAX_LINE_BYTES], b"", self._held[MAX_LINE_BYTES:]

    async def _read(self) -> bytes:
        try:
            await trio.lowlevel.wait_readable(self.descriptor)
        except PermissionError:  # a file: epoll does not watch it, and it can always be read
            await trio.lowlevel.checkpoint()
        try:
            return os.read(self.descriptor, READ_BYTES)
        except OSError:  # the terminal was closed
            return b""
