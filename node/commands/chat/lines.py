"""Lines of standard input: of a terminal, a pipe or a file, without a thread that the end would wait for.

Invariants:
- nothing is read before it is asked for, so that a program that follows in a pipe finds its own input;
- a line is at most MAX_LINE_BYTES long; what is longer comes in several.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import trio

MAX_LINE_BYTES = 1 << 20
"""Of one line: more than any model reads."""

READ_BYTES = 1 << 16


@dataclass(kw_only=True)
class Lines:
    """Lines of `descriptor`, which stays open and as it is."""

    descriptor: int = 0
    _held: bytes = b""
    _is_over: bool = False

    async def next(self) -> str | None:
        """Return the next line without its end; None where there is none any more."""
        while b"\n" not in self._held and len(self._held) < MAX_LINE_BYTES and not self._is_over:
            data = await self._read()
            self._held += data
            self._is_over = not data
        if not self._held:
            return None
        line, _, self._held = self._cut()
        return line.decode(errors="replace").removesuffix("\r")

    def forget(self) -> None:
        """Drop what was typed of a line and not ended."""
        self._held = b""

    def _cut(self) -> tuple[bytes, bytes, bytes]:
        if b"\n" in self._held[:MAX_LINE_BYTES]:
            return self._held.partition(b"\n")
        return self._held[:MAX_LINE_BYTES], b"", self._held[MAX_LINE_BYTES:]

    async def _read(self) -> bytes:
        try:
            await trio.lowlevel.wait_readable(self.descriptor)
        except PermissionError:  # a file, which epoll does not watch, and which is always there
            await trio.lowlevel.checkpoint()
        try:
            return os.read(self.descriptor, READ_BYTES)
        except OSError:  # the terminal was closed
            return b""
