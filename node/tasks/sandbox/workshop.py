"""Keep a sandbox for one episode: pieces of Python and shell commands run in it, and its files stay between them.

The sandbox has the restrictions of a program under test (`node.tasks.sandbox.bubblewrap`): no network, no environment,
no capability, /usr and an interpreter to read, and one directory in memory to write. Inside, a small server starts each
piece in a process of its own (`node.tasks.sandbox.workshop_program`). That takes a few milliseconds; a new sandbox
takes some thirty.

Invariants:

- A workshop starts when it is first asked, and never without these restrictions: `Workshop.run` raises TaskError.
- Every piece ends within its time, with all processes that it started. Its output, memory, processes and files are
  limited.
- The server inside is not trusted. Its answers are read up to a limit. If it does not answer in time, or answers
  nonsense, the sandbox is ended, and `run` returns Lost. The next piece gets a new sandbox, without the files.
- The sandbox ends with `close`, and with the process that asks.
"""

from __future__ import annotations

import json
import math
import os
import select
import socket
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

import msgspec

from node.tasks.api.interface import TaskError
from node.tasks.sandbox import bubblewrap
from node.tasks.sandbox.bubblewrap import MB, STACK_MB, START_S, SYSTEM_PYTHON, SandboxLimits, require_bubblewrap
from node.tasks.sandbox.seccomp import call_filter

Kind = Literal["python", "shell"]

SHELL = "/bin/sh"

ANSWER_BYTES = 6
"""Maximum bytes of a line per kept byte: JSON writes a control character as \\u0000."""

MAX_WORDS = 2_000
"""Bytes of its last output to show if it cannot be started."""

PROGRAM = Path(__file__).with_name("workshop_program.py")


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a piece: its output, the number of further bytes that were dropped, and its exit code like in a
    shell; None if its time was up."""

    output: str
    dropped: int
    code: int | None


@dataclass(frozen=True, kw_only=True)
class Lost:
    """The sandbox did not answer and was ended. Its files are gone."""


class Workshop:
    """A sandbox that lasts for one episode. For one thread at a time."""

    def __init__(self, *, limits: SandboxLimits, keep_bytes: int, python: str = "") -> None:
        """`keep_bytes`: how much of a piece's output to return. `limits.output_mb` limits each file that it writes."""
        self._limits, self._keep, self._python = limits, keep_bytes, python
        self._inside: _Inside | None = None

    @property
    def pid(self) -> int | None:
        """The process id of bwrap, while there is one."""
        return None if self._inside is None else self._inside.process.pid

    def run(self, kind: Kind, text: str) -> Piece | Lost:
        """Run a piece and return its result. Waits. Raises TaskError if no sandbox can be started."""
        if self._inside is None:
            self._inside = _start(self._limits, self._python)
        asked = {"kind": kind, "text": text, "time_s": self._limits.time_s, "keep": self._keep}
        question = json.dumps(asked).encode() + b"\n"
        most = ANSWER_BYTES * self._keep + MAX_WORDS
        said = self._inside.ask(question, self._limits.time_s + START_S, most)
        try:
            if said is not None:
                return msgspec.json.decode(said, type=Piece)
        except (msgspec.DecodeError, UnicodeDecodeError):
            pass  # a piece has reached the server, so nothing that it says from here on can be used
        self.close()
        return Lost()

    def close(self) -> None:
        """End the sandbox and all that runs in it, if there is one."""
        inside, self._inside = self._inside, None
        if inside is not None:
            inside.end()


@dataclass(frozen=True, kw_only=True)
class _Inside:
    """A running sandbox. `info`: a descriptor of the file that bwrap wrote about it."""

    process: subprocess.Popen[bytes]
    line: socket.socket
    info: int

    def ask(self, question: bytes, wait_s: float, most: int) -> bytes | None:
        """Send `question`, and return the next line of at most `most` bytes; None if there is none in time. Waits."""
        until = time.monotonic() + wait_s
        self.line.settimeout(wait_s)
        parts: list[bytes] = []
        size = 0
        try:
            self.line.sendall(question)
            while size <= most and (left_s := until - time.monotonic()) > 0:
                self.line.settimeout(left_s)
                if not (part := self.line.recv(1 << 16)):
                    return None
                parts.append(part)
                size += len(part)
                if part.endswith(b"\n"):
                    return b"".join(parts)
        except OSError:  # a timeout is one
            pass
        return None

    def end(self) -> None:
        self.line.close()
        if self.process.poll() is None:
            pidfd = os.pidfd_open(self.process.pid)
            bubblewrap.end_first(os.pread(self.info, 4096, 0), pidfd)
            os.close(pidfd)
        self.process.kill()
        self.process.wait()
        os.close(self.info)


@lru_cache(maxsize=8)
def require_workshop(limits: SandboxLimits, python: str = "") -> None:
    """Raise TaskError, with the command to type, unless pieces can run here within `limits` (except for time)."""
    require_bubblewrap("the tools python and shell")
    workshop = Workshop(limits=replace(limits, time_s=START_S), keep_bytes=1000, python=python)
    try:
        for kind, text in (("python", "print('here')"), ("shell", "echo here")):
            ran = workshop.run("python" if kind == "python" else "shell", text)
            if not isinstance(ran, Piece) or ran.output != "here\n":
                raise TaskError(
                    f"the sandbox runs, but {kind} in it does not: {ran}. Name another interpreter in python=, or "
                    "raise memory_mb= and processes=."
                )
    finally:
        workshop.close()


def _start(limits: SandboxLimits, python: str) -> _Inside:
    """Start a sandbox. Raises TaskError."""
    interpreter = python or SYSTEM_PYTHON
    if not Path(interpreter).exists():
        raise TaskError(
            f"{interpreter}, on which tools run, is not there. Run: sudo apt-get install -y python3, or name another "
            "interpreter in the task's python=."
        )
    with ExitStack() as stack:
        words = stack.enter_context(bubblewrap.open_nameless_file(b""))
        named = stack.enter_context(bubblewrap.open_nameless_file(b""))
        forbidden = stack.enter_context(bubblewrap.open_nameless_file(call_filter()))
        here, there = socket.socketpair()
        stack.callback(there.close)
        settings = {
            "line": there.fileno(),
            "shell": SHELL,
            "limits": (
                limits.memory_mb * MB,
                math.ceil(limits.time_s) + 1,
                # The server counts as one of the processes.
                limits.processes + 1,
                limits.open_files,
                limits.output_mb * MB,
                0,
                STACK_MB * MB,
            ),
        }
        command = bubblewrap.stays_open(limits, python, named, forbidden)
        flags = ("-I", "-S", "-B", "-X", "utf8", "-c", PROGRAM.read_text(encoding="utf-8"))
        process = bubblewrap.start(
            [*command, interpreter, *flags, json.dumps(settings)],
            (subprocess.DEVNULL, words, words),
            (there.fileno(), named, forbidden),
        )
        inside = _Inside(process=process, line=here, info=os.dup(named))
        there.close()
        if not _is_there(inside):
            inside.end()
            said = os.pread(words, MAX_WORDS, 0).decode(errors="replace").strip()
            raise TaskError(bubblewrap.explain_failure(said or "it printed nothing"))
    return inside


def _is_there(inside: _Inside) -> bool:
    waiting = select.poll()
    waiting.register(inside.line, select.POLLIN)
    try:
        return bool(waiting.poll(1000 * START_S)) and inside.line.recv(2) == b"+\n"
    except OSError:
        return False
