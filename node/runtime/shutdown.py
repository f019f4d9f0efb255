"""Ctrl-C, SIGTERM, a closed terminal and the end of a parent, as something a nursery can wait for.

What always holds: a program that waits here is told once, in order, and leaves through its scopes, so children end and
files close. Whoever starts a node for its own purposes sets `STOP_ON_EOF` and holds the node's stdin open: when the
starter dies, however it dies, the node stops. A closed terminal (SIGHUP) stops it as well, unless that was ignored when
the program started, as `nohup` has it.
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
    """Somebody asked the program to stop: not a failure. What was durable stays so."""


async def wait_for_stop(*, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Return when SIGINT, SIGTERM or SIGHUP arrives, or stdin ends if `STOP_ON_EOF` is set. Started when it would hear
    them.

    After that SIGINT and SIGTERM do what they did before: whoever is in a hurry asks twice. SIGHUP then does nothing:
    a shell passes it on, and the kernel sends it again when the shell ends, and nobody is in a hurry.
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
    """While inside, a signal sets `told` and does nothing else.

    `trio.open_signal_receiver` would raise on leaving what came beside the first reason to stop: a Ctrl-C reaches a
    whole process group, so a node is often told by its starter's end in the same moment.
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
    """Do nothing. (SIG_IGN would be handed on to children.)"""


async def _wait_for_eof(told: trio.Event) -> None:
    stdin = trio.lowlevel.FdStream(os.dup(0))
    async with stdin:
        with suppress(trio.BrokenResourceError):  # it was a terminal, and that was closed
            while await stdin.receive_some(4096):
                pass
    told.set()


async def stop_when_told(
    leave: Callable[[], Awaitable[None]] | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Wait to be told to stop, await `leave` (bounded by itself), then raise Stopped.

    One for each program, in its outermost nursery, started before all else: left to the interpreter, a Ctrl-C that
    lands inside a callback of C code is printed and forgotten, and one that comes to a program which a shell script
    started in the background is ignored.
    """
    await wait_for_stop(task_status=task_status)
    if leave is not None:
        await leave()
    raise Stopped
