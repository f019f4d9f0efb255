"""Write a run as a log for journald, containers and files: a line for each event, with its time and level.

    text   2026-11-30T12:00:00.250Z info  version 1.8: greedy 0.75, sampled 0.5
    json   {"time": "2026-11-30T12:00:00.250Z", "level": "info", "event": "evaluated", "text": "...", "fields": {...}}

An event is a line of JSON also if people read nothing of it; as text only those with a sentence are lines. Events of
the level debug come with every heartbeat or chunk, and only stand in `events.jsonl`.

Invariants:

- An event never waits for the log, and never fails by it. At most MOST_WAITING lines wait.
- A file with its older ones takes at most (1 + KEPT_FILES) times FILE_BYTES.
- A full disk costs lines and nothing else. The number of lost lines is told when there is room again.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Protocol

from node.runtime.errors import UsageError
from node.runtime.events import Fields
from node.runtime.formatting import counted
from node.ui.live_view import ViewState
from node.ui.plain_lines import status_line
from node.ui.view_updates import sentence_of
from protocol.core.visible import visible

FILE_BYTES = 16 * 1024 * 1024
"""Bytes after which a log file is rotated: some days of a busy learner, and an editor still opens it."""

KEPT_FILES = 4
"""Older files that are kept beside it: PATH.1 is the newest of them."""

MOST_WAITING = 10_000
"""Lines that wait for the next writing, twice a second; beyond that, the oldest are dropped and counted."""

STATUS_S = 60.0
"""Seconds between two lines with the state, as text."""


class LogFormat(Enum):
    """The form of a log."""

    TEXT = "text"
    JSON = "json"


class Level(Enum):
    """How much an event matters."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


DEBUG_EVENTS = frozenset({
    "heartbeat", "traffic", "energy", "work_pending", "peer_reach", "relays_credited", "proofs_kept", "reputation_told",
    "rank_told", "loop_measured", "audits_made", "scores_made", "choice_drawn", "leases_granted_again",
})  # fmt: skip
"""Events that would fill a log and say little."""

WARNING_EVENTS = frozenset({
    "alarm_raised", "standing_still", "nodes_unable", "node_trouble", "trouble", "checkpoint_failed",
    "checkpoint_unusable", "milestone_given_up", "child_died", "child_restarting", "trainer_restarted",
    "engine_crashed", "install_failed", "evaluation_failed", "learner_unreachable", "turned_away", "metrics_failed",
    "notices_failed", "peer_banned", "peer_fault", "key_copied", "audit_failed", "audit_impossible", "certificate_ends",
    "clock_differs", "loop_held", "over_budget", "batch_dropped", "reward_failed", "revision_dropped",
    "port_mapping_failed",
})  # fmt: skip
"""Events after which a person may have to do something."""

ERROR_EVENTS = frozenset({"child_abandoned", "gave_up", "ledger_restored"})
"""Events after which the program ends, or a person must act."""


def level_of(event: str) -> Level:
    """Return the level of an event."""
    if event in ERROR_EVENTS:
        return Level.ERROR
    if event in WARNING_EVENTS:
        return Level.WARNING
    return Level.DEBUG if event in DEBUG_EVENTS else Level.INFO


class Sink(Protocol):
    """Takes whole lines, without their ends."""

    def write(self, lines: list[str]) -> None: ...


@dataclass(eq=False)
class LogLines:
    """Makes lines of what happens in `state`, and gives them to `sink` when told."""

    form: LogFormat
    state: ViewState
    sink: Sink
    now: Callable[[], float] = time.time
    _waiting: deque[str] = field(default_factory=lambda: deque(maxlen=MOST_WAITING))
    _dropped: int = 0
    _next_s: float = STATUS_S

    def take(self, event: str, fields: Fields) -> None:
        """Take an event, which `state` has taken before."""
        if (level := level_of(event)) is Level.DEBUG:
            return
        self._put(level, sentence_of(self.state, event, fields), event, fields)

    def say(self, text: str) -> None:
        """Take what is printed to people."""
        if self.form is LogFormat.JSON:
            self._put(Level.INFO, text)
            return
        for line in filter(None, text.splitlines()):
            self._put(Level.INFO, line)

    def update(self) -> None:
        """Write what waits. Raises what the sink raises."""
        if self.form is LogFormat.TEXT and self.state.now_s >= self._next_s:
            self._next_s = self.state.now_s + STATUS_S
            self._put(Level.INFO, status_line(self.state))
        lines = list(self._waiting)
        self._waiting.clear()
        if self._dropped:
            dropped, self._dropped = counted(self._dropped, "line"), 0
            self._put(Level.WARNING, f"{dropped} of this log left out here: too many came at once")
            lines.insert(0, self._waiting.pop())
        if lines:
            self.sink.write(lines)

    def _put(self, level: Level, text: str, event: str = "", fields: Fields | None = None) -> None:
        at = iso_time(self.now())
        if self.form is LogFormat.TEXT:
            if text:
                self._append(f"{at} {level.value:<7} {visible(text)}")
            return
        told: dict[str, object] = {"time": at, "level": level.value}
        told |= {"event": event} if event else {}
        told |= {"text": text} if text else {}
        told |= {"fields": dict(fields)} if fields else {}
        self._append(json.dumps(told, default=str))

    def _append(self, line: str) -> None:
        self._dropped += len(self._waiting) == MOST_WAITING
        self._waiting.append(line)


def iso_time(at: float) -> str:
    """Return seconds since 1970 as ISO 8601 in UTC, to a millisecond."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, kw_only=True)
class Stream:
    """Writes to standard output. `write` and `flush` raise what they raise there."""

    out: Callable[[str], object]
    flush: Callable[[], object]

    def write(self, lines: list[str]) -> None:
        self.out("".join(f"{line}\n" for line in lines))
        self.flush()


class LogFile:
    """Writes to a file of a bounded size, and keeps KEPT_FILES older ones. `trouble` hears once that it fails."""

    def __init__(self, path: Path, trouble: Callable[[str], None]) -> None:
        """Open `path`. Raises UsageError."""
        self._path, self._trouble = path, trouble
        self._lost = 0
        self._is_failing = False
        try:
            self._file = _BoundedFile(path, self._failed)
        except OSError as error:
            raise UsageError(
                f"--log-file {path} cannot be opened: {error.strerror}. Name a file in a directory that is there and "
                "that you may write to."
            ) from None

    def write(self, lines: list[str]) -> None:
        """Append lines. Does not raise."""
        for line in lines:
            before = self._lost
            self._file.emit(logging.makeLogRecord({"msg": line}))
            if self._lost == before and self._is_failing:
                self._is_failing = False
                said = f"{counted(self._lost, 'line')} of this log lost: the file could not be written"
                self._lost = 0
                self._file.emit(logging.makeLogRecord({"msg": said}))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _failed(self, error: BaseException | None) -> None:
        self._lost += 1
        if not self._is_failing:
            self._is_failing = True
            reason = getattr(error, "strerror", None) or str(error)
            self._trouble(f"--log-file {self._path} cannot be written: {reason}; its lines are lost until it can be")


class _BoundedFile(RotatingFileHandler):
    """The library's file, which starts anew after a failure instead of printing a traceback."""

    def __init__(self, path: Path, failed: Callable[[BaseException | None], None]) -> None:
        super().__init__(path, maxBytes=FILE_BYTES, backupCount=KEPT_FILES, encoding="utf-8", errors="backslashreplace")
        self._failed = failed

    def _open(self) -> TextIOWrapper:
        """Open the file; end a line that a full disk or a crash cut short."""
        path = Path(self.baseFilename)
        if path.is_file() and (size := path.stat().st_size):
            with path.open("rb") as before:
                before.seek(size - 1)
                is_torn = before.read(1) != b"\n"
        else:
            is_torn = False
        stream = super()._open()
        if is_torn:
            stream.write("\n")
        return stream

    def handleError(self, record: logging.LogRecord) -> None:
        stream, self.stream = self.stream, None
        if stream is not None:
            with suppress(OSError):
                stream.close()
        self._failed(sys.exc_info()[1])
