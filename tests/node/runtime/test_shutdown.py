"""Stop on a signal, a closed terminal, or the end of the parent process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from node.runtime.shutdown import STOP_ON_EOF, wait_for_stop

PROGRAM = """
import trio
from trio.testing import wait_all_tasks_blocked
from node.runtime.shutdown import wait_for_stop

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


IGNORING = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
HEEDING = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
"""Makes a child heed hang-ups: the test run may ignore them, which a child inherits."""

STOPS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@contextmanager
def program(*, stop_on_eof: bool, text: str = PROGRAM) -> Iterator[subprocess.Popen[str]]:
    environment = {key: value for key, value in os.environ.items() if key != STOP_ON_EOF}
    if stop_on_eof:
        environment[STOP_ON_EOF] = "1"
    command = [sys.executable, "-c", HEEDING + text]
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


@pytest.mark.parametrize("number", STOPS)
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


def test_a_hang_up_that_is_ignored_at_the_start_stays_so() -> None:
    with program(stop_on_eof=False, text=IGNORING + PROGRAM) as running:
        running.send_signal(signal.SIGHUP)
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(timeout=0.3)
        running.send_signal(signal.SIGTERM)
        assert end_of(running) == ("left in order\n", "", 0)


def test_hang_ups_after_the_first_word_do_not_hurry_a_program() -> None:
    """A shell that is closed passes SIGHUP on, and the kernel sends it again when the shell has ended."""
    seen = []

    async def main() -> None:
        await trio.lowlevel.checkpoint()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_stop)
            await wait_all_tasks_blocked()
            signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        seen.append("in order")

    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        trio.run(main)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert seen == ["in order"]


def test_a_terminal_that_is_closed_is_the_end_of_stdin() -> None:
    master, slave = os.openpty()
    environment = {**os.environ, STOP_ON_EOF: "1"}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=slave, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    ) as running:  # fmt: skip
        os.close(slave)
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        os.close(master)
        assert end_of(running) == ("left in order\n", "", 0)


# Before anybody waits for them: as `volery` itself imports, and in commands that wait for nothing

SENDING = "import os, signal\nos.kill(os.getpid(), signal.{name})\n"


@pytest.mark.parametrize("number", STOPS)
def test_told_while_it_imports_a_program_ends_without_a_word(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(SENDING.format(name=number.name))
    path = os.pathsep.join([str(tmp_path), str(Path.cwd())])
    program = f"import signal; signal.signal(signal.{number.name}, {DEFAULTS[number]}); import node.cli.main as cli"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; cli.main()", "tasks"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


DEFAULTS = {
    signal.SIGINT: "signal.default_int_handler",  # ignored where a shell started us behind itself
    signal.SIGTERM: "signal.SIG_DFL",
    signal.SIGHUP: "signal.SIG_DFL",
}


def test_told_while_commands_are_made_a_program_ends_without_a_word() -> None:
    program = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
import typer.main
from node.cli.main import main
typer.main.get_command = lambda app: os.kill(os.getpid(), signal.SIGINT)
main()
"""
    done = subprocess.run([sys.executable, "-c", program, "tasks"], capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_once_imported_all_three_are_ctrl_c_to_who_waits_for_nothing() -> None:
    program = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
import node.cli.main
from node.runtime.startup import loaded
loaded()
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    try:
        signal.raise_signal(number)
    except KeyboardInterrupt:
        print(number.name, flush=True)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["SIGINT", "SIGTERM", "SIGHUP"], "")


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
