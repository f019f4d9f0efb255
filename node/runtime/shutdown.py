"""Let a nursery wait for Ctrl-C, SIGTERM, a closed terminal or the end of a parent process.

A program that starts a node for its own purposes sets `STOP_ON_EOF` and holds the node's stdin open: when that program
dies, however it dies, the node stops. A closed terminal (SIGHUP) stops the node as well, unless SIGHUP was ignored when
the program started, as with `nohup`.

Invariants:

- A program that waits here is stopped once, in order. It leaves through its scopes, so children end and files close.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import trio

from node.runtime.startup import STOPPED_EXIT_CODE

__all__ = ["STOPPED_EXIT_CODE", "STOP_ON_EOF", "Stopped", "stop_when_told", "wait_for_stop"]

STOP_ON_EOF = "VOLERY_STOP_ON_EOF"


class Stopped(Exception):
    """Somebody asked the program to stop. It is no failure, and durable state is safe."""


async def wait_for_stop(*, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Return when SIGINT, SIGTERM or SIGHUP arrives, or when stdin ends if `STOP_ON_EOF` is set. It counts as started
    once it would notice them.

    Afterwards SIGINT and SIGTERM do what they did before, so a user in a hurry asks twice. SIGHUP then does nothing: a
    shell passes it on, and the kernel sends it again when the shell ends, and nobody is in a hurry.
    """
    told = trio.Event()
    async with trio.open_nursery() as nursery:
        if os.environ.get(STOP_ON_EOF):
            nursery.start_soon(_wait_for_eof, told)
        with _signals_set(told):
            task_status.started()
            await told.wait()
        nursery.cancel_scope.cancel()


@contextmanager
def _signals_set(told: trio.Event) -> Iterator[None]:
    """While inside, a signal only sets `told`.

    On leaving, `trio.open_signal_receiver` would raise the signals that came besides the first reason to stop. A Ctrl-C
    reaches a whole process group, so a node often gets it in the same moment as its starter's end.
    """
    token = trio.lowlevel.current_trio_token()

    def tell(_number: int, _frame: FrameType | None) -> None:
        token.run_sync_soon(told.set, idempotent=True)

    heeds_hangup = signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN
    numbers = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if heeds_hangup else ()))
    before = {number: signal.signal(number, tell) for number in numbers}
    try:
        yield
    finally:
        if heeds_hangup and told.is_set():
            before[signal.SIGHUP] = _pass_over
        for number, handler in before.items():
            signal.signal(number, handler)


def _pass_over(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. (Children would inherit SIG_IGN.)"""


async def _wait_for_eof(told: trio.Event) -> None:
    stdin = trio.lowlevel.FdStream(os.dup(0))
    async with stdin:
        with suppress(trio.BrokenResourceError):  # stdin was a terminal, which was closed
            while await stdin.receive_some(4096):
                pass
    told.set()


async def stop_when_told(
    leave: Callable[[], Awaitable[None]] | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Wait until the program is to stop, await `leave` (which must end by itself), then raise Stopped.

    Each program has one, in its outermost nursery, started before all else. Left to the interpreter, a Ctrl-C that
    lands inside a callback of C code is printed and forgotten, and a program that a shell script started in the
    background ignores Ctrl-C.
    """
    await wait_for_stop(task_status=task_status)
    if leave is not None:
        await leave()
    raise Stopped
