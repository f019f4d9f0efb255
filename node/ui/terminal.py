"""Show a program to a person while it runs: the live view, or plain lines when stdout is not a terminal."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import rich.console
import trio

from node.energy.machine_load import Load, follow_load
from node.reports.model.report import Role
from node.runtime.errors import RunError
from node.runtime.events import EventLog
from node.runtime.formatting import folded
from node.runtime.loop_watch import spare_collections
from node.runtime.safe_console import HarmlessConsole
from node.runtime.shutdown import STOP_ON_EOF, STOPPED_EXIT_CODE, Stopped, stop_when_told
from node.state.owner_orders import Drain, OwnerRequests
from node.ui.charts import clock
from node.ui.full_screen import FullScreen
from node.ui.keyboard import Keyboard, in_foreground
from node.ui.live_view import Notice, ViewState
from node.ui.log_lines import LogFile, LogFormat, LogLines, Stream
from node.ui.look import Order
from node.ui.plain_lines import PlainLines
from swarm.transport.error_groups import first_cause

T = TypeVar("T")

REFRESH_S = 0.5
"""Seconds between two drawings of the screen: often enough to look alive, and cheap beside the work."""

LAST_NOTICES = 8
"""Notices that stay in sight when the screen is left."""

KEY = "the key p"

ALREADY = "this program stops already; Ctrl-C ends it at once"
NOT_JOINED = "there is no node to pause or drain yet"
CANNOT_PAUSE = (
    "a learner cannot be paused or drained from here: q stops it as Ctrl-C does, and the same command continues the run"
)


@dataclass(frozen=True, kw_only=True)
class LogChoice:
    """How the run is logged. `file`: the log goes there, and the view stays; None: JSON goes to standard output."""

    form: LogFormat = LogFormat.TEXT
    file: Path | None = None


NO_LOG = LogChoice()
"""The view alone."""


@dataclass(eq=False, kw_only=True)
class Terminal:
    """The screen, the lines or the log of one program, while it is open.

    `orders`: where the keys of a node leave its owner's orders; None before it has joined, and on a learner.
    """

    console: rich.console.Console
    state: ViewState
    refresh: Callable[[], None]
    screen: FullScreen | None = None
    logs: Sequence[LogLines] = ()
    speaks: bool = True
    """Whether what is said is printed. With JSON on standard output, it is a line of the log instead."""
    orders: OwnerRequests | None = None
    is_stopping: bool = False
    printed: list[Notice] = field(default_factory=list)
    """Notices that stand on the first screen as well. It begins with them, so they are not repeated at the end."""

    def say(self, text: str) -> None:
        """Print `text` as it is; if the view fills the terminal, on the first screen, and as a notice.

        Long lines stay whole, so that they can be copied.
        """
        self._say(text, text)

    def _say(self, text: str, shown: str) -> None:
        """Print `shown`, and leave `text` in the logs and as a notice."""
        for log in self.logs:
            log.say(text)
        if self.screen is not None:
            first, _, more = text.strip().partition("\n")
            self.state.note(f"{first} (i shows all of it)" if more else first)
            if not more:
                self.printed.append(self.state.notices[-1])
        if self.speaks:
            with self.screen.printing() if self.screen is not None else nullcontext():
                self.console.print(shown, highlight=False, markup=False, soft_wrap=True)
        for log in self.logs:
            log.update()

    def tell_report(self, command: str) -> None:
        """Remember the command for the report, which a page of the screen shows."""
        if self.screen is not None:
            self.screen.report = command

    async def keep_fresh(self) -> None:
        """Redraw until cancelled."""
        while True:
            self.state.tick(time.monotonic() - self.state.began_s)
            self.refresh()
            await trio.sleep(REFRESH_S)

    async def follow_load(self) -> None:
        """Show how busy the machine is with a node, until cancelled. Only a screen shows it."""
        if self.screen is not None and self.state.role is Role.ROLLOUT:
            await follow_load(os.getpid(), self._take_load)

    def _take_load(self, load: Load) -> None:
        self.state.load = load

    async def follow_keys(self) -> None:
        """Do what keys ask for, until cancelled or the terminal is gone."""
        if self.screen is None or self.screen.keyboard is None:
            return
        async for key in self.screen.keyboard.keys():
            if (order := self.screen.press(key)) is not None:
                self.obey(order)
                self.screen.draw()

    def obey(self, order: Order) -> None:
        """Carry out what a key ordered, or say why that is not possible."""
        if order is Order.STOP:
            if self.is_stopping:
                self.state.note(ALREADY)
                return
            self.is_stopping = True
            signal.raise_signal(signal.SIGINT)
        elif self.state.role is Role.LEARNER:
            self.state.note(CANNOT_PAUSE)
        elif self.orders is None:
            self.state.note(NOT_JOINED)
        else:
            try:
                self.state.note(_owner_order(order, self.orders))
            except RunError as error:
                self.state.note(str(error))

    def say_stopped(self, *lines: str) -> int:
        """Say what the program did until it was stopped, and return the exit code.

        Call it when the live view is over: the text then stands below it, and stays in sight.
        """
        text = "\n".join(line for line in lines if line)
        self._say(text, _on_lines(self.console, text))
        return STOPPED_EXIT_CODE


def _owner_order(order: Order, orders: OwnerRequests) -> str:
    """Leave the order of a node's owner; return what happens next. Raises RunError."""
    if order is Order.DRAIN:
        if orders.drained is not None:
            return "this node drains already"
        orders.drain(Drain())
        return "draining, by the key d: the node delivers what it has, and ends"
    if orders.paused_by:
        orders.resume()
        return "the pause ends, by the key p"
    orders.pause(KEY)
    return "pausing, by the key p: press it again to go on"


async def run_shown(
    terminal: Terminal, program: Callable[[], Awaitable[T]], *, leave: Callable[[], Awaitable[None]] | None = None
) -> T:
    """Run `program` to its end while `terminal` is kept fresh, and return its outcome.

    Raises what ends the program by its own type. When the program is asked to stop, or its output cannot be written
    any more, it first awaits `leave`, then raises Stopped or that error.
    """

    async def keep_fresh() -> None:
        try:
            await terminal.keep_fresh()
        except (OSError, RunError):  # the reader went away (`| head`), or the disk is full: still leave in order
            if leave is not None:
                await leave()
            raise

    try:
        with first_cause():
            async with trio.open_nursery() as nursery:
                await nursery.start(stop_when_told, leave)
                nursery.start_soon(keep_fresh)
                nursery.start_soon(terminal.follow_keys)
                nursery.start_soon(terminal.follow_load)
                outcome = await program()
                nursery.cancel_scope.cancel()
    except Stopped:
        terminal.state.activity = "stopped"
        raise
    return outcome


async def run_session(
    terminal: Terminal, events: EventLog, program: Callable[[], Awaitable[T]], leave: Callable[[], Awaitable[None]]
) -> T | None:
    """Run a role as `run_shown` does, and close its event log. Return None when it was stopped, after `leave`."""
    spare_collections()
    try:
        with suppress(Stopped):
            return await run_shown(terminal, program, leave=leave)
        return None
    finally:
        events.close()


@contextmanager
def open_terminal(
    state: ViewState,
    *,
    plain: bool,
    aside: bool = False,
    log: LogChoice = NO_LOG,
    events: EventLog | None = None,
) -> Iterator[Terminal]:
    """Show `state` while inside: on the whole terminal if it can, otherwise as lines.

    With `plain` it is shown as lines even on a terminal. With `aside` it goes to stderr, because another program reads
    stdout. `log` asks for a log of `events`. Raises UsageError if its file cannot be opened.
    """
    console = HarmlessConsole(file=sys.stderr if aside else sys.stdout, force_terminal=False if plain else None)
    out = Stream(out=console.file.write, flush=console.file.flush)
    file = None if log.file is None else LogFile(log.file, state.note)
    is_log = log.form is LogFormat.JSON and file is None
    logs = [LogLines(form=log.form, state=state, sink=file or out)] if is_log or file is not None else []
    if events is not None:
        for lines in logs:
            events.listen(lines.take)
    screen = None
    if not is_log and not plain and shows_pictures(console):
        screen = FullScreen(console=console, state=state, keyboard=_keyboard())
    plain_lines = PlainLines(write=out.write) if screen is None and not is_log else None

    def refresh() -> None:
        for lines in logs:
            lines.update()
        if screen is not None:
            screen.draw()
        elif plain_lines is not None:
            plain_lines.update(state)

    terminal = Terminal(console=console, state=state, refresh=refresh, screen=screen, logs=logs, speaks=not is_log)
    with screen.shown() if screen is not None else nullcontext():
        try:
            yield terminal
        finally:
            refresh()  # shows the latest events before the caller prints more
    if screen is not None:
        terminal.screen = None
        _say_last(terminal)


def shows_pictures(console: rich.console.Console) -> bool:
    """Return whether `console` is a terminal that shows Unicode, moves its cursor, and is ours now."""
    if not console.is_terminal or console.is_dumb_terminal or not console.encoding.lower().startswith("utf"):
        return False
    try:
        return in_foreground(console.file.fileno())
    except (OSError, ValueError):
        return False


def _keyboard() -> Keyboard | None:
    """Return the keys of standard input, if it is a terminal and nobody else reads it."""
    if os.environ.get(STOP_ON_EOF) or not os.isatty(0):
        return None
    return Keyboard(0)


def _say_last(terminal: Terminal) -> None:
    """Print the newest notices that the screen has taken with it."""
    taken = [notice for notice in terminal.state.notices if notice not in terminal.printed]
    for notice in taken[-LAST_NOTICES:]:
        text = _on_lines(terminal.console, f"{clock(notice.at_s)}  {notice.text}")
        terminal.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _on_lines(console: rich.console.Console, text: str) -> str:
    """Return `text` with its lines broken at words if `console` is a terminal."""
    if not console.is_terminal:
        return text
    return "\n".join(folded(line, console.width) for line in text.split("\n"))


def go_on(again: str) -> str:
    return f"Stopped. All that was acknowledged is on disk. To continue, start {again} again."
