"""Run one piece of Python or one shell command at a time, inside the sandbox of an episode, in a directory that stays.

The program stands alone, for any interpreter. It is the first process of its namespace (`node.tasks.sandbox.workshop`
starts it). A line of JSON asks, a line of JSON answers:

    {"kind": "python" | "shell", "text": ..., "time_s": ..., "keep": ...}
    {"output": ..., "code": exit code or null when the time was up, "dropped": bytes beyond `keep`}

Invariants:

- Every piece runs in a process of its own, which sets its limits before its first line and does not have the socket.
- When a piece ends or its time is up, all processes except this one are killed and buried, whatever was started.
- Output beyond `keep` bytes is read and dropped, so a program that prints for ever takes no memory.
- The program ends when the socket closes.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time

MYPY = False
if MYPY:  # mypy takes this as true; at run time every episode would wait for the import
    from typing import Any, NoReturn

MB = 1 << 20

READ_BYTES = 1 << 16

MAX_DESCRIPTORS = 1 << 20
"""More descriptors than this process ever has."""

LIMITS = ("AS", "CPU", "NPROC", "NOFILE", "FSIZE", "CORE", "STACK")


def main() -> None:
    settings = json.loads(sys.argv[1])
    line = settings["line"]
    hide()
    with open(os.dup(line), "rb") as asked:
        os.write(line, b"+\n")
        while question := asked.readline():
            answer = run(json.loads(question), settings)
            say(line, json.dumps(answer).encode() + b"\n")


def hide() -> None:
    """Forbid other processes to look into this process, which has the socket, or to write into it."""
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE


def say(line: int, data: bytes) -> None:
    while data:
        data = data[os.write(line, data) :]


def run(question: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        begin(question, settings, writes)
    os.close(writes)
    output, dropped, ended = listen(reads, child, question["time_s"], question["keep"])
    code = bury(child)
    more, more_dropped = drain(reads, question["keep"] - len(output))
    os.close(reads)
    return {
        "output": (output + more).decode(errors="replace"),
        "dropped": dropped + more_dropped,
        "code": code if ended else None,
    }


def listen(reads: int, child: int, time_s: float, keep: int) -> tuple[bytes, int, bool]:
    """Return (output until the piece ends, bytes dropped, whether it ended in time)."""
    output, dropped, until = b"", 0, time.monotonic() + time_s
    ends = os.pidfd_open(child)
    try:
        watched = select.poll()
        watched.register(reads, select.POLLIN)
        watched.register(ends, select.POLLIN)
        while (left_s := until - time.monotonic()) > 0:
            ready = [number for number, _ in watched.poll(1 + left_s * 1000)]
            if reads in ready:
                if part := os.read(reads, READ_BYTES):
                    kept = part[: keep - len(output)]
                    output, dropped = output + kept, dropped + len(part) - len(kept)
                    continue  # the end of the piece may come after its output
                watched.unregister(reads)
            if ends in ready:
                return output, dropped, True
        return output, dropped, False
    finally:
        os.close(ends)


def bury(child: int) -> int:
    """Kill all that is left and wait for it. Return the exit code of the piece, like in a shell."""
    code = 0
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        try:
            found, status = os.wait()
        except ChildProcessError:
            return code
        if found == child:
            code = os.waitstatus_to_exitcode(status)
            code = 128 - code if code < 0 else code


def drain(reads: int, room: int) -> tuple[bytes, int]:
    """Return what is left in the pipe when all writers are gone: 64 KiB at most."""
    os.set_blocking(reads, False)
    output, dropped = b"", 0
    try:
        while part := os.read(reads, READ_BYTES):
            kept = part[: max(room - len(output), 0)]
            output, dropped = output + kept, dropped + len(part) - len(kept)
    except BlockingIOError:
        pass
    return output, dropped


def begin(question: dict[str, Any], settings: dict[str, Any], writes: int) -> NoReturn:
    """Run a piece, in its own process: set the limits, close the socket, execute. Never returns."""
    try:
        os.setsid()
        nothing = os.open("/dev/null", os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(writes, 1)
        os.dup2(writes, 2)
        os.closerange(3, MAX_DESCRIPTORS)
        for name, limit in zip(LIMITS, settings["limits"], strict=True):
            resource.setrlimit(getattr(resource, "RLIMIT_" + name), (limit, limit))
        worry()
        if question["kind"] == "shell":
            os.execv(settings["shell"], [settings["shell"], "-c", question["text"]])
        execute(question["text"])
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode(errors="replace"))
    os._exit(1)


def worry() -> None:
    """Let the kernel end this process first if memory runs out."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


def execute(text: str) -> NoReturn:
    """Run Python as a program of its own. Its traceback looks like that of an interpreter."""
    code = 0
    sys.argv = ["program.py"]
    sys.path.insert(0, "")
    try:
        exec(compile(text, "program.py", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        if code and not isinstance(end.code, int):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        code = 1
        show(error, text)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code & 255)


def show(error: BaseException, text: str) -> None:
    """Print the traceback, with the lines of the program."""
    import linecache  # here, because they take longer to import than most programs run
    import traceback

    sys.stdout.flush()
    linecache.cache["program.py"] = (len(text), None, text.splitlines(keepends=True), "program.py")
    # The first entry belongs to `execute`.
    behind = error.__traceback__ and error.__traceback__.tb_next
    traceback.print_exception(type(error), error, behind)


if __name__ == "__main__":
    main()
