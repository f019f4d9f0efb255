"""Write events with fields: one JSON object a line in a file, and the same event to every listener.

Invariants:

- An event has a name in snake case, a time, and flat fields that JSON can hold.
- Writing an event neither raises nor waits for the disk, so it may be done anywhere. Facts that must
  not be lost go to the ledger or the receipts, whose writers do raise.
- A line that a full disk left half-written is ended before the next one.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Field = str | int | float | bool | None
Fields = Mapping[str, Any]
"""The fields of an event, as `emit` was given them. `node.runtime.event_reference` explains them all, and tests compare
the two."""

Listener = Callable[[str, Fields], None]

MAX_LOG_BYTES = 64 * 1024 * 1024
"""Bytes after which the file is rotated once, to `.1`: two files, 128 MiB, weeks of a busy learner."""


class Unwritten:
    """Tell listeners of events without writing them."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = listeners

    def emit(self, event: str, **fields: Field) -> None:
        """Call every listener."""
        for listener in self._listeners:
            listener(event, fields)


class EventLog:
    """Write events to `path` (None: nowhere), and tell listeners."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._file: int | None = None
        self._torn = False
        self._listeners: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """Call `listener(name, fields)` for every event from now on."""
        self._listeners.append(listener)

    def write_to(self, path: Path) -> None:
        """Append to this file from now on."""
        self.close()
        self._path = path

    @property
    def unwritten(self) -> Unwritten:
        """Return the sink for events that are not worth a line of the file: only listeners get them."""
        return Unwritten(self._listeners)

    def emit(self, event: str, **fields: Field) -> None:
        """Tell listeners, and write a line."""
        self.unwritten.emit(event, **fields)
        line = json.dumps({"at": round(time.time(), 3), "event": event, **fields}, default=str).encode() + b"\n"
        try:
            self._write(line)
        except OSError:
            self.close()

    def trouble(self, text: str) -> None:
        """Record, in a sentence, what somebody should attend to."""
        self.emit("trouble", text=text)

    def close(self) -> None:
        """Close the file. A later event opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _write(self, line: bytes) -> None:
        if self._path is None:
            return
        if self._file is not None and os.fstat(self._file).st_nlink == 0:  # the file was removed: begin another
            self.close()
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o644)
            self._torn = _is_torn(self._file)
        data = b"\n" + line if self._torn else line
        # One write, so that two processes with one log never mix their lines. A full disk may cut it short.
        self._torn = os.write(self._file, data) < len(data)
        if os.fstat(self._file).st_size > MAX_LOG_BYTES:
            self.close()
            self._path.replace(self._path.with_name(self._path.name + ".1"))


def _is_torn(file: int) -> bool:
    """Return whether the file's last line has no end, after a full disk or a power cut."""
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


class Clock:
    """The wall clock, in milliseconds since 1970."""

    @staticmethod
    def now_ms() -> int:
        return time.time_ns() // 1_000_000
