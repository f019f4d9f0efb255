"""What this run does and when, written down as it happens: for estimates now, for plans and simulations later.

What always holds: a recording reads back whole (`learner.provisioning.estimation.recording`), from its first line, also
after a kill, a full disk or a rotation, since whenever a file or a gap begins, the terms of the run, who is here and
the last plan are said again; `at_s` never falls; nothing here raises or, but for `recall`, waits for the disk, since a
run matters more than the record of it. The observatory hears all of it, written or not.
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
"""Then the file becomes `.1`: two files, 128 MiB, some 600,000 deliveries."""

RETRY_S = 10.0
"""How long a disk that failed is left alone."""


def steady_clock() -> Callable[[], float]:
    """Seconds since 1970 by the clock on the wall as it is now, and from here on by one that nobody sets."""
    ahead_s = time.time() - time.monotonic()
    return lambda: ahead_s + time.monotonic()


class RunRecorder:
    """See the module's paragraph.

    Args:
        path: where to write, or None: nowhere.
        terms: what every incarnation of the run begins with; its time and step are put in when it does.
        trouble: told, once for each time, that the disk does not take what happens.
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
        """For `at_s`: seconds since 1970, never less than before."""
        self._now_s = max(self._now_s, round(self._clock(), 3))
        return self._now_s

    def recall(self) -> None:
        """Hear what was recorded before this process, so that it need not be measured again; before `begin`.

        Reads the files: call it on a thread. What was recorded under other terms is left out, what is damaged with all.
        """
        if self._path is None:
            return
        observatory = SwarmEstimator()
        try:
            for path in filter(Path.is_file, [self._path.with_name(f"{self._path.name}.1"), self._path]):
                self._hear(path, observatory)
        except (OSError, RecordingError) as error:
            self._trouble(f"What was measured before is to be measured again: {error}")
            return
        # Nobody was here between its end and now.
        observatory.handle(replace(self.terms, at_s=observatory.now_s))
        self.observatory = observatory

    def _hear(self, path: Path, observatory: SwarmEstimator) -> None:
        hears = False
        with open_file(path) as file:
            for event in read_lines(file, path.name):
                if isinstance(event, Began):
                    # Whether what took so long then takes as long now.
                    now = self.terms
                    alike = replace(
                        event, format=now.format, at_s=now.at_s, step=now.step, kappa=now.kappa, staleness=now.staleness
                    )
                    hears = alike == now
                if hears:
                    observatory.handle(event)

    def begin(self, step: int) -> None:
        """An incarnation begins at training step `step`, with those who are here already."""
        self._began, self._plan = replace(self.terms, format=FORMAT, at_s=self.now_s(), step=step), None
        header = self._header(self._began.at_s)
        for event in header:
            self.observatory.handle(event)
        self._write(header)

    def record(self, event: Recorded) -> None:
        """Take in what happened. Before the first `begin`, only who is here is noted."""
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
        """What a reader must know who begins here."""
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
                said = self._header(events[0].at_s)  # who is here and the plan, with what is to be written now
                events = [*said, *(event for event in events if not isinstance(event, Joined | Left | Planned))]
            file.append(b"".join(encode_line(event) for event in events))
        except OSError as error:
            if self._failed_s is None:
                self._trouble(
                    f"The recording misses what happens now: {error}. It goes on when the disk takes it again."
                )
            self._failed_s = events[0].at_s
        else:
            self._failed_s = None
