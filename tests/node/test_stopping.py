"""Told to stop by a signal, or by the end of whoever started us."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node.stopping import STOP_ON_EOF, wait_for_stop

PROGRAM = """
import trio
from trio.testing import wait_all_tasks_blocked
from node.stopping import wait_for_stop

async def stop(scope):
    await wait_for_stop()
    scope.cancel()

async def main():
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            nursery.start_soon(stop, nursery.cancel_scope)
            await wait_all_tasks_blocked()
            print("ready", flush=True)
    finally:
        print("left in order", flush=True)

trio.run(main)
"""


@contextmanager
def program(*, stop_on_eof: bool) -> Iterator[subprocess.Popen[str]]:
    environment = {key: value for key, value in os.environ.items() if key != STOP_ON_EOF}
    if stop_on_eof:
        environment[STOP_ON_EOF] = "1"
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as running:
        try:
            assert running.stdout is not None
            assert running.stdout.readline() == "ready\n"
            yield running
        finally:
            running.kill()


def end_of(running: subprocess.Popen[str]) -> tuple[str, str, int]:
    out, err = running.communicate(timeout=60)
    return out, err, running.returncode


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("stop_on_eof", [False, True])
def test_a_signal_stops_the_program_in_order(number: signal.Signals, stop_on_eof: bool) -> None:
    with program(stop_on_eof=stop_on_eof) as running:
        running.send_signal(number)
        assert end_of(running) == ("left in order\n", "", 0)


def test_what_comes_beside_the_first_reason_to_stop_is_not_raised_again() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_stop)
            await wait_all_tasks_blocked()
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)

    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    trio.run(main)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_the_end_of_the_starter_stops_the_program_too() -> None:
    with program(stop_on_eof=True) as running:
        assert running.stdin is not None
        running.stdin.write("whatever is said here is not listened to\n")
        assert end_of(running) == ("left in order\n", "", 0)


def test_a_program_that_was_not_asked_to_does_not_care_about_its_stdin() -> None:
    with program(stop_on_eof=False) as running:
        assert running.stdin is not None
        running.stdin.close()
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(timeout=0.3)
        running.send_signal(signal.SIGTERM)
        running.stdin = None
        assert end_of(running) == ("left in order\n", "", 0)
