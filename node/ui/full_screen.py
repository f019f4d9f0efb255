"""Draw pictures on the whole terminal, on its second screen, so that the shell's lines are there again afterwards.

Only lines that changed are written, each at its place. So drawing costs little, and a resize disturbs one picture.

Invariants:

- The second screen is left, and the terminal's settings are restored, before the program ends, stops (Ctrl-Z) or quits
  (Ctrl-\\), and before anything is printed.
- Everything that is printed stays on the first screen, in order and unbroken, so that it can be copied.
- Nothing is drawn while the program is in the background.
- A signal that comes while something is written waits for the end of that.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType

from rich.console import Console, ConsoleOptions, RenderResult
from rich.control import Control
from rich.segment import ControlType
from rich.text import Text

from node.ui.keyboard import Keyboard, in_foreground
from node.ui.live_view import ViewState
from node.ui.look import Look, Order, press
from node.ui.picture import Footing, picture

ENTER = "\x1b[?1049h\x1b[?7l\x1b[?25l\x1b[2J"
"""To the second screen, without wrapping and without a cursor; clear it."""

LEAVE = "\x1b[?25h\x1b[?7h\x1b[?1049l"

LEAVING_SIGNALS = (signal.SIGTSTP, signal.SIGQUIT)
"""Signals that stop or end a program at once: the terminal is given back first."""


@dataclass(eq=False)
class FullScreen:
    """The screen of a program on `console`, showing `state`. `keyboard`: None if no keys can be read."""

    console: Console
    state: ViewState
    keyboard: Keyboard | None = None
    report: str = ""
    look: Look = field(default_factory=Look)
    shows_printed: bool = False
    """Whether the first screen is shown, because a person asked for it."""
    has_printed: bool = False
    _is_up: bool = False
    _drawn: list[Text] = field(default_factory=list)
    _size: tuple[int, int] = (80, 24)
    _writing: int = 0
    _waits: int | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the screen while inside. The signals that leave a program are handled meanwhile."""
        before = {number: signal.signal(number, self._on_leaving) for number in LEAVING_SIGNALS}
        before[signal.SIGCONT] = signal.signal(signal.SIGCONT, self._on_return)
        try:
            self.draw()
            yield
        finally:
            self.leave()
            for number, handler in before.items():
                signal.signal(number, handler)

    # Drawing

    def draw(self) -> None:
        """Draw what has changed. Raises what writing raises."""
        if self.shows_printed or not in_foreground(self._descriptor):
            return
        with self._whole():
            self._draw()

    def _draw(self) -> None:
        if not self._is_up:
            self._enter()
        if (size := self._measured()) != self._size:
            self._size, self._drawn = size, []
            self.console.control(Control.clear())
        width, height = size
        footing = Footing(has_keys=self.keyboard is not None, report=self.report)
        made = picture(self.state, self.look, width, height, footing)
        self.look = Look(
            page=self.look.page, scrolled=min(self.look.scrolled, made.most), most=made.most, lines=made.page_lines
        )
        changed = [
            (place, line)
            for place, line in enumerate(made.lines)
            if place >= len(self._drawn) or line != self._drawn[place]
        ]
        self._drawn = made.lines
        if changed:
            self.console.print(_Lines(changed, width), end="", crop=False)

    def press(self, key: str) -> Order | None:
        """Follow a key; return what it orders."""
        if self.shows_printed:
            self.shows_printed = False
            self.draw()
            return None
        self.look, order = press(self.look, key)
        if order is Order.SHOW_PRINTED:
            self._show_printed()
            return None
        self.draw()
        return order

    @contextmanager
    def printing(self) -> Iterator[None]:
        """Show the first screen while inside, for what is printed to stay."""
        self.has_printed = True
        was_up = self._is_up
        self._down()
        with self._whole():
            yield
        if was_up:
            self.draw()

    def leave(self) -> None:
        """Show the first screen again, and give the terminal back."""
        self._down()
        if self.keyboard is not None:
            self.keyboard.restore()

    def _show_printed(self) -> None:
        if not self.has_printed:
            self.state.note("nothing was printed so far")
            self.draw()
            return
        self._down()
        self.shows_printed = True
        self.console.print("(any key brings the view back)", style="dim")

    # The two screens

    @property
    def _descriptor(self) -> int:
        with suppress(OSError, ValueError):
            return self.console.file.fileno()
        return -1

    def _enter(self) -> None:
        self._is_up, self._drawn = True, []
        self._size = self._measured()
        if self.keyboard is not None:
            self.keyboard.take()
        self._write(ENTER)

    def _down(self) -> None:
        if self._is_up:
            self._is_up = False
            with suppress(OSError):
                self._write(LEAVE)

    def _write(self, text: str) -> None:
        self.console.file.write(text)
        self.console.file.flush()

    def _measured(self) -> tuple[int, int]:
        """Return columns and lines: those of the terminal; the last ones that are known if it is gone."""
        with suppress(OSError):
            size = os.get_terminal_size(self._descriptor)
            if size.columns > 0 and size.lines > 0:
                return size.columns, size.lines
        return (self.console.width, self.console.height) if self._descriptor < 0 else self._size

    # Signals

    @contextmanager
    def _whole(self) -> Iterator[None]:
        """Let a signal wait while inside: what is half written would go to the wrong screen."""
        self._writing += 1
        try:
            yield
        finally:
            self._writing -= 1
            if not self._writing and (number := self._waits) is not None:
                self._waits = None
                self._on_leaving(number, None)

    def _on_leaving(self, number: int, _frame: FrameType | None) -> None:
        """Give the terminal back, then do what the signal does by itself. After a stop, go on."""
        if self._writing:
            self._waits = number
            return
        self.leave()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
        signal.signal(number, self._on_leaving)  # it was only stopped, and goes on; or nobody could let it go on
        self._on_return(number, None)

    def _on_return(self, _number: int, _frame: FrameType | None) -> None:
        """The next drawing begins anew, since others may have drawn and set the terminal meanwhile."""
        self._is_up = False
        self._drawn = []


@dataclass(frozen=True)
class _Lines:
    """Lines at their places, for a rich console."""

    lines: Iterable[tuple[int, Text]]
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for place, line in self.lines:
            yield Control.move_to(0, place).segment
            yield from line.render(console)
            if line.cell_len < self.width:
                yield Control((ControlType.ERASE_IN_LINE, 0)).segment
