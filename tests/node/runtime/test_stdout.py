"""C libraries' prints do not reach readers of the output, and output that cannot be written is reported once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import ctypes, os, sys
from node.runtime.stdout import keep_outlet
print("before")
keep_outlet()
libc = ctypes.CDLL(None)
libc.puts(b"from C")
libc.fflush(None)
os.write(1, b"to the descriptor")
print("after, ümläut")
"""


def test_only_python_prints() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, check=True, encoding="utf-8", env={"PYTHONUTF8": "1"}
    )
    assert done.stdout == "before\nafter, ümläut\n"
    assert done.stderr == ""


def test_where_output_is_captured_nothing_is_changed() -> None:
    before = sys.stdout
    from node.runtime.stdout import keep_outlet

    keep_outlet()
    assert sys.stdout is before


# As programs of their own: a full disk, a reader who goes away, descriptors that nobody opened


def volery(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    program = "from node.cli.main import main; main()"
    return subprocess.run([sys.executable, "-c", program, *arguments], check=False, timeout=60, **options)


full = pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="there is no /dev/full here")


@full
@pytest.mark.parametrize("arguments", [("tasks",), ("--help",), ("plan", "--help"), ("--version",)])
def test_a_full_disk_is_said_in_a_sentence(arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("wb") as disk:
        done = volery(*arguments, stdout=disk, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.decode() == (
        "volery: error: standard output cannot be written: No space left on device. Free disk space, or redirect it.\n"
    )


@full
def test_a_simulation_on_a_full_disk_has_written_its_files_before(tmp_path: Path) -> None:
    pool, record, picture = tmp_path / "pool.csv", tmp_path / "recording.jsonl", tmp_path / "timeline.png"
    pool.write_text("name,price,rate,count\nbox,0,1,4\n")
    times = ("--train-s", "10", "--rollouts", "32", "--broadcast-s", "1", "--steps", "2")
    files = ("--record", str(record), "--picture", str(picture))
    with Path("/dev/full").open("wb") as disk:
        done = volery("simulate", str(pool), *times, *files, stdout=disk, stderr=subprocess.PIPE)
    assert done.returncode == 1
    assert done.stderr.count(b"\n") == 1
    assert record.exists()
    assert picture.exists()


@full
def test_errors_that_cannot_be_written_are_in_the_exit_code() -> None:
    with Path("/dev/full").open("wb") as disk:
        done = volery("plan", "none.toml", stdout=subprocess.PIPE, stderr=disk)
    assert (done.returncode, done.stdout) == (2, b"")


def test_a_reader_who_has_gone_away_is_no_trouble() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = volery("tasks", stdout=writing, stderr=subprocess.PIPE)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


def test_what_is_shown_to_a_terminal_that_was_closed_is_dropped() -> None:
    """By a program that goes on without it; a disk that fails in the same way is still told."""
    program = (
        "import sys; from node.runtime.stdout import keep_outlet; keep_outlet(); print('before', flush=True)\n"
        "sys.stdin.readline(); print('after', flush=True); print('more', flush=True); sys.exit(7)"
    )
    master, slave = os.openpty()
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=slave, text=True) as running:
        os.close(slave)
        told = b""
        while not told.endswith(b"\n"):
            told += os.read(master, 100)
        assert told == b"before\r\n"
        os.close(master)
        running.communicate("go on\n", timeout=60)
    assert running.returncode == 7


@pytest.mark.parametrize("is_terminal", [True, False])
def test_long_lines_are_folded_for_a_terminal_alone(is_terminal: bool) -> None:
    program = "from node.runtime.stdout import say_folded; say_folded('one two three four five six')"
    environment = {**os.environ, "COLUMNS": "20"}
    command = [sys.executable, "-c", program]
    if not is_terminal:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == "one two three four five six\n"
        return
    master, slave = os.openpty()
    with subprocess.Popen(command, env=environment, stdout=slave) as running:
        os.close(slave)
        told = b""
        while not told.endswith(b"six\r\n"):
            told += os.read(master, 100)
        assert told == b"one two three four\r\nfive six\r\n"
    os.close(master)
    assert running.returncode == 0


def closing(which: str, command: str) -> list[str]:
    """A shell that starts this interpreter with some descriptors closed."""
    return ["sh", "-c", f'exec "$0" -c "$1" tasks {which}', sys.executable, command]


def test_descriptors_that_were_closed_become_those_of_no_file(tmp_path: Path) -> None:
    done = subprocess.run(
        closing(">&-", "from node.cli.main import main; main()"), check=False, timeout=60, stderr=subprocess.PIPE
    )
    assert (done.returncode, done.stderr) == (0, b"")
    program = (
        "from node.runtime.stdout import keep_outlet; keep_outlet()\n"
        f"file = open({str(tmp_path / 'file')!r}, 'wb'); file.write(b'%d' % file.fileno())"
    )
    subprocess.run(closing("<&- >&- 2>&-", program), check=True, timeout=60)
    assert int((tmp_path / "file").read_bytes()) > 2


def test_what_an_encoding_lacks_is_escaped() -> None:
    program = "from node.runtime.stdout import is_screen, keep_outlet; keep_outlet(); print('n\\u00f6de', is_screen())"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, env=environment, timeout=60)
    assert done.stdout == b"n\\xf6de False\n"


@pytest.mark.parametrize(
    ("cpu_s", "name"), [(0.5, "SIGINT"), (2.5, "SIGINT"), (2.5, "SIGTERM"), (2.5, "SIGHUP")], ids=str
)
def test_ctrl_c_ends_a_long_simulation_with_nothing_left_behind(tmp_path: Path, cpu_s: float, name: str) -> None:
    """Told by a timer of its own processor time, so that it is at work whatever else this machine does."""
    pool = tmp_path / "pool.csv"
    pool.write_text("name,price,rate,count\nbox,0,1,40\n")
    program = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # ignored under `nohup`
        "from node.cli.main import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored where a shell started us behind itself
        f"signal.signal(signal.SIGPROF, lambda *_: signal.raise_signal(signal.{name}))\n"
        f"signal.setitimer(signal.ITIMER_PROF, {cpu_s}); main()"
    )
    times = ("--train-s", "10", "--rollouts", "256", "--broadcast-s", "1", "--hours", "10000")
    files = ("--record", str(tmp_path / "out" / "recording.jsonl"), "--picture", str(tmp_path / "timeline.png"))
    done = subprocess.run(
        [sys.executable, "-c", program, "simulate", str(pool), *times, *files],
        check=False, timeout=120, capture_output=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")
    assert list(tmp_path.iterdir()) == [pool]
