"""Read keys from a terminal on trio, and give the terminal back as it was.

Only echo and the wait for whole lines are turned off, so Ctrl-C, Ctrl-Z and Ctrl-\\ still mean what they always do.

Invariants:

- After `restore` the terminal's settings are those from before `take`.
- Nothing is read while the program is in the background: the kernel would stop it.
- A pasted text is no row of orders.
"""

from __future__ import annotations

import os
import re
import termios
import tty
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import trio

READ_BYTES = 1024
"""Most bytes that are taken at once."""

MOST_TYPED = 8
"""Most letters that a hand types between two looks. More are a pasted text, which is passed over."""

BACKGROUND_S = 0.5
"""Seconds between looks whether a program in the background is in the foreground again."""

SEQUENCES = {
    b"A": "up", b"B": "down", b"C": "right", b"D": "left", b"H": "home", b"F": "end", b"1~": "home", b"4~": "end",
    b"5~": "page up", b"6~": "page down", b"7~": "home", b"8~": "end",
}  # fmt: skip
"""Keys by the end of their escape sequence, with and without application mode."""

_KEY = re.compile(rb"\x1b[\[O]([0-9;]*[ -/]*[@-~])|\x1b(?=\x1b|$)|\x1b[ -~]|([^\x1b])", re.S)


def keys_in(data: bytes) -> Iterator[str]:
    """Yield the keys in what a terminal sent at once: a letter, or a name such as "page up"; unknown ones are left
    out."""
    found: list[str] = []
    for match in _KEY.finditer(data):
        sequence, plain = match.groups()
        if sequence is not None:
            found += [SEQUENCES[sequence]] if sequence in SEQUENCES else []
        elif plain is not None:
            found += [chr(plain[0])] if 0x20 <= plain[0] < 0x7F else []
        elif match[0] == b"\x1b":
            found.append("escape")
    is_pasted = sum(1 for key in found if len(key) == 1) > MOST_TYPED
    return (key for key in found if len(key) > 1 or not is_pasted)


def in_foreground(descriptor: int) -> bool:
    """Return whether this program may read and draw on its terminal. A terminal that controls nothing may be used."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True


@dataclass(eq=False)
class Keyboard:
    """The keys of the terminal behind `descriptor`, which must be one."""

    descriptor: int
    _before: list[Any] | None = field(default=None)

    def take(self) -> None:
        """Let keys come at once, without echo. Does nothing in the background, or if the terminal is gone."""
        if not in_foreground(self.descriptor):
            return
        with suppress(termios.error):
            if self._before is None:
                self._before = termios.tcgetattr(self.descriptor)
            tty.setcbreak(self.descriptor, termios.TCSANOW)

    def restore(self) -> None:
        """Restore the terminal's settings, if it is still there. In the background the shell has done so."""
        before, self._before = self._before, None
        if before is not None and in_foreground(self.descriptor):
            with suppress(termios.error):
                termios.tcsetattr(self.descriptor, termios.TCSANOW, before)

    async def keys(self) -> AsyncIterator[str]:
        """Yield keys until the terminal is gone."""
        while True:
            await trio.lowlevel.wait_readable(self.descriptor)
            if not in_foreground(self.descriptor):
                await trio.sleep(BACKGROUND_S)
                continue
            try:
                data = os.read(self.descriptor, READ_BYTES)
            except OSError:
                return
            if not data:
                return
            for key in keys_in(data):
                yield key
