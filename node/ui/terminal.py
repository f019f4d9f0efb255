"""Show a program to a person while it runs: the live view, or plain lines when stdout is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

import rich.console
import trio

from node.runtime.errors import RunError
from node.runtime.events import EventLog
from node.runtime.loop_watch import spare_collections
from node.runtime.safe_console import HarmlessConsole
from node.runtime.shutdown import STOPPED_EXIT_CODE, Stopped, stop_when_told
from node.ui.live_view import ViewState, show_live
from swarm.transport.error_groups import first_cause

T = TypeVar("T")

REFRESH_S = 0.5
"""Seconds between two drawings of the screen: often enough to look alive, and cheap beside the work."""


@dataclass(frozen=True, kw_only=True)
class Terminal:
    """The screen of one program, while it is open."""

    console: rich.console.Console
    state: ViewState
    refresh: Callable[[], None]

    def say(self, text: str) -> None:
        """Print `text` as it is, above the live view if there is one.

        Long lines stay whole, so that they can be copied.
        """
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    async def keep_fresh(self) -> None:
        """Redraw until cancelled."""
        began = trio.current_time()
        while True:
            self.state.tick(trio.current_time() - began)
            self.refresh()
            await trio.sleep(REFRESH_S)

    def say_stopped(self, *lines: str) -> int:
        """Say what the program did until it was stopped, and return the exit code.

        Call it when the live view is over: the text then stands below it, and stays in sight.
        """
        self.say("\n".join(line for line in lines if line))
        return STOPPED_EXIT_CODE


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
def open_terminal(state: ViewState, *, plain: bool, aside: bool = False) -> Iterator[Terminal]:
    """Show `state` while inside.

    With `plain` it is shown as lines even on a terminal. With `aside` it goes to stderr, because another program reads
    stdout.
    """
    console = HarmlessConsole(file=sys.stderr if aside else sys.stdout, force_terminal=False if plain else None)
    with show_live(console, state) as refresh:
        try:
            yield Terminal(console=console, state=state, refresh=refresh)
        finally:
            refresh()  # shows the latest events before the caller prints more


def go_on(again: str) -> str:
    return f"Stopped. All that was acknowledged is on disk. To continue, start {again} again."
