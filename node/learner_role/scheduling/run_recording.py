"""Record what this run does and when, for estimates during the run, and for plans and simulations later.

The observatory gets all events, written or not.

Invariants:

- A recording can be read from its first line (`learner.provisioning.estimation.recording`), also after a kill, a full
  disk or a rotation. At the start of a file, and after a gap, the terms of the run, the present peers and the last plan
  are repeated.
- `at_s` never decreases.
- Nothing here raises an error, and only `recall` waits for the disk: the run matters more than its recording.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from learner.artifacts.regular_file import open_file
from learner.provisioning.estimation.estimator import SwarmEstimator
from learner.provisioning.estimation.recording import (
    FORMAT,
    Began,
    Joined,
    Left,
    Planned,
    Recorded,
    RecordingError,
    Stepped,
    encode_line,
    read_lines,
)
from node.runtime.append_log import LineFile

MAX_RECORDING_BYTES = 64 * 1024 * 1024
"""Bytes at which the file is renamed to `.1`. Two files, 128 MiB, hold some 600,000 deliveries."""

RETRY_S = 10.0
"""Seconds after which a disk that failed is tried again."""


def steady_clock() -> Callable[[], float]:
    """Return a clock that starts with the wall clock's seconds since 1970, and then cannot be set."""
    ahead_s = time.time() - time.monotonic()
    return lambda: ahead_s + time.monotonic()


class RunRecorder:
    """Writes events to the recording, and passes them to the observatory.

    Args:
        path: the file to write; None writes no file.
        terms: the event with which every incarnation of the run begins; time and step are filled in then.
        trouble: called with a sentence, once for each time that the disk fails.
        clock: seconds since 1970.
    """

    def __init__(
        self,
        path: Path | None,
        terms: Began,
        *,
        trouble: Callable[[str], None],
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.observatory = SwarmEstimator()
        self._path = path
        self._file = None if path is None else LineFile(path, most_bytes=MAX_RECORDING_BYTES)
        self.terms = terms
        self._trouble = trouble
        self._clock = clock or steady_clock()
        self._now_s = 0.0
        self._began: Began | None = None
        self._plan: Planned | None = None
        self._here: dict[str, Joined] = {}
        self._failed_s: float | None = None

    def now_s(self) -> float:
        """Return the time for `at_s`: seconds since 1970, never less than before."""
        self._now_s = max(self._now_s, round(self._clock(), 3))
        return self._now_s

    def recall(self) -> None:
        """Read what earlier processes recorded, so that it need not be measured again. Call it before `begin`.

        It reads files: call it on a thread. Events under other terms are skipped. If a file is damaged, all are
        skipped.
        """
        if self._path is None:
            return
        observatory = SwarmEstimator()
        try:
            for path in filter(Path.is_file, [self._path.with_name(f"{self._path.name}.1"), self._path]):
                self._hear(path, observatory)
        except (OSError, RecordingError) as error:
            self._trouble(f"Earlier measurements cannot be read, and are made again: {error}")
            return
        # No peer was here between its end and now.
        observatory.handle(replace(self.terms, at_s=observatory.now_s))
        self.observatory = observatory

    def _hear(self, path: Path, observatory: SwarmEstimator) -> None:
        hears = False
        with open_file(path) as file:
            for event in read_lines(file, path.name):
                if isinstance(event, Began):
                    # Whether the earlier measurements hold under the terms of now.
                    now = self.terms
                    alike = replace(
                        event, format=now.format, at_s=now.at_s, step=now.step, kappa=now.kappa, staleness=now.staleness
                    )
                    hears = alike == now
                if hears:
                    observatory.handle(event)

    def begin(self, step: int) -> None:
        """Begin an incarnation at training step `step`, with the peers that are here already."""
        self._began, self._plan = replace(self.terms, format=FORMAT, at_s=self.now_s(), step=step), None
        header = self._header(self._began.at_s)
        for event in header:
            self.observatory.handle(event)
        self._write(header)

    def record(self, event: Recorded) -> None:
        """Record an event. Before the first `begin`, only the present peers are noted."""
        match event:
            case Joined():
                self._here[event.peer] = event
            case Left():
                self._here.pop(event.peer, None)
            case Planned():
                self._plan = event
            case Stepped() if self._began is not None:
                self._began = replace(self._began, step=event.step)
            case _:
                pass
        if self._began is None:
            return
        self.observatory.handle(event)
        self._write([event])

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _header(self, at_s: float) -> list[Recorded]:
        """Return the events that a reader needs in order to begin here."""
        assert self._began is not None
        said: list[Recorded] = [self._began, *self._here.values()]
        if self._plan is not None:
            said.append(self._plan)
        return [replace(event, at_s=at_s) for event in said]

    def _write(self, events: list[Recorded]) -> None:
        file = self._file
        if file is None or (self._failed_s is not None and events[0].at_s < self._failed_s + RETRY_S):
            return
        try:
            if file.is_full:
                file.set_aside()
            if not file.is_open and not isinstance(events[0], Began):
                said = self._header(events[0].at_s)  # the present peers and the plan, including the new events
                events = [*said, *(event for event in events if not isinstance(event, Joined | Left | Planned))]
            file.append(b"".join(encode_line(event) for event in events))
        except OSError as error:
            if self._failed_s is None:
                self._trouble(
                    f"The recording misses current events: {error}. It continues as soon as the disk works again."
                )
            self._failed_s = events[0].at_s
        else:
            self._failed_s = None
