"""Write the page of a run again whenever the run has changed, for a web server that serves files.

The page of one moment is `document`'s. Here is when it is made anew, and when that ends.

Invariants:

- A look at a run that has not changed reads its status, and no ledger.
- The file is replaced whole, and only by a page that differs.
- Trouble is told once, and the end of it once; each look tries again.
- The last page of a run that has ended no longer asks to be loaded again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import trio

from node.reports.html.document import as_html, write_page
from node.reports.model.report import OwnReport, SwarmReport
from node.reports.readers.place_report import mark_of, pause_after, read_report
from node.runtime.errors import NodeError, RunError
from node.state.locate import StateLocation
from node.state.status_file import running_pid

RESTART_S = 660.0
"""Seconds after which a run has ended whose program is gone before its last training step. A service starts it again
within ten minutes."""

Tell = Callable[[str], None]
"""Tells the person one line."""

Read = Callable[[StateLocation], SwarmReport | OwnReport]
"""Reads the report with its history. Raises NodeError."""


def _read(place: StateLocation) -> SwarmReport | OwnReport:
    return read_report(place, with_history=True)


@dataclass(kw_only=True, eq=False)
class KeptPage:
    """The page at `path` of the run at `place`, which is looked at every `every_s` seconds."""

    place: StateLocation
    path: Path
    every_s: float
    tell: Tell
    read: Read = _read
    _made_of: object = None
    """What the run's files were like, and whether the page loads itself again, when `_page` was made."""
    _page: str = ""
    _written: str = ""
    _trouble: str = ""
    _is_finished: bool = False
    """Whether the last training step was taken."""

    async def run(self) -> None:
        """Keep the page until the run has ended. Raises NodeError if the first page cannot be made."""
        began, was_running = time.thread_time(), self.is_running
        self._write_if_new(is_last=not was_running)
        if not was_running:
            self.tell(f"Wrote {self.path}. Nothing runs in {self.place.state} now, so it is not written again.")
            return
        self.tell(f"Wrote {self.path}. It is written again when the run has changed, until the run ends or Ctrl-C.")
        cost_s, ran_at, has_ended = time.thread_time() - began, trio.current_time(), False
        while not has_ended or self._trouble:
            await trio.sleep(pause_after(cost_s, self.every_s))
            if is_running := self.is_running:
                ran_at = trio.current_time()
            has_ended = not is_running and (self._is_finished or trio.current_time() - ran_at >= RESTART_S)
            cost_s = self._look(is_last=has_ended)
        self.tell(f"The run in {self.place.state} has ended, and {self.path} is its last page.")

    @property
    def is_running(self) -> bool:
        """Whether the run's program is there."""
        return running_pid(self.place.state) is not None

    def _look(self, *, is_last: bool) -> float:
        """Write the page if it is another one, and return the processor's seconds that it took."""
        began, trouble = time.thread_time(), ""
        try:
            self._write_if_new(is_last=is_last)
        except NodeError as error:
            trouble = str(error)
        if trouble and trouble != self._trouble:
            self.tell(f"{trouble} This is tried again until then.")
        elif self._trouble and not trouble:
            self.tell(f"{self.path} is up to date again.")
        self._trouble = trouble
        return time.thread_time() - began

    def _write_if_new(self, *, is_last: bool) -> None:
        """Raises NodeError."""
        made_of = (mark_of(self.place), is_last)
        if made_of != self._made_of:
            report = self.read(self.place)
            self._page = as_html(report, again_s=None if is_last else self.every_s)
            self._made_of, self._is_finished = made_of, self._has_last_step(report)
        if self._page == self._written and self.path.is_file():
            return
        try:
            write_page(self._page, self.path)
        except OSError as error:
            raise RunError(
                f"{self.path} cannot be written: {error.strerror}. Check that its directory is there, writable and not "
                "full."
            ) from None
        self._written = self._page

    def _has_last_step(self, report: SwarmReport | OwnReport) -> bool:
        config = self.place.config
        if config is None or not isinstance(report, SwarmReport) or not report.steps:
            return False
        return report.steps[-1].step >= config.learn.steps
