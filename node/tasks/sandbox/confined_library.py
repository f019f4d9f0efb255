"""Ask a library about what strangers wrote, in a sandbox of bubblewrap, because the library may execute it.

reasoning-gym scores some answers with `eval`, and sympy compiles text wherever it reads or evaluates a formula
(`parse_expr`, `sympify`, `lambdify`). So to them, what a policy says is a program. The sandbox is like the one for
programs under test (`node.tasks.sandbox.bubblewrap`), but it stays: the library is imported once, and each text is
judged in a process forked from that one (`node.tasks.sandbox.confined_program`).

Invariants:

- No text of strangers reaches the library outside the sandbox. If there is no sandbox, `require` and `ask` raise.
- The sandbox has no network, no environment, no capability, no /proc and no writable file. Readable are /usr, the
  interpreter's own files, and packages in directories named site-packages or dist-packages.
- A text can change its own judgement, and nothing else. The next text is judged in an unchanged process.
- Every question ends after LIMIT_S of processor time or WALL_S, with or without an answer, and the next question finds
  a process. The sandbox ends with the process that asks.

Unlike programs under test, the sandbox keeps the user of the verifier, even root, whose interpreter and packages often
lie where no other user can read them. Without capabilities and /proc, root could only do one more thing: start
processes without a limit. The process that judges can start none.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from node.tasks.api.interface import TaskError
from node.tasks.sandbox.bubblewrap import (
    end_first,
    explain_failure,
    open_nameless_file,
    require_bubblewrap,
    shut,
    start,
)
from node.tasks.sandbox.seccomp import call_filter, fork_filter

LIMIT_S = 5
"""Seconds of processor time for one text, as long as math-verify's own timeout. Nearly all take milliseconds. Wall
time would give other rewards on a busy machine than on an idle one."""

WALL_S = 120.0
"""Seconds after which a process that neither works nor answers is given up. The start, which takes seconds, has the
same limit."""

MEMORY_BYTES = 2 << 30
"""Bytes of address space for the process with the library, and for the one that judges. sympy takes a tenth of it."""

MAX_LINE_BYTES = 64 << 10
"""Maximum bytes of an answer, or of an error message."""

MAX_WORDS = 2_000
"""Characters of its last output to show if it cannot be started."""

PACKAGES = ("site-packages", "dist-packages")
"""Directories that installers make only for packages. Others on the path, such as the working directory, may hold the
operator's keys."""

ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""One thread each, because threads of numpy are useless in a forked process."""

QUICK = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Use large memory pages, for which glibc asks the kernel. Then a fork copies 60 MB in a third of the time."""

SERVER = Path(__file__).with_name("confined_program.py")

_ALL: weakref.WeakSet[Confined] = weakref.WeakSet()


class Confined:
    """A library in a sandbox, started when it is first asked. One question at a time: other callers wait.

    `program`: the source of a module with `load()`, which imports the library, and `prepare(topic)`, which returns a
    function that judges a text. It imports nothing else. `title`: its name in errors.
    """

    def __init__(self, program: str, title: str, *, limit_s: int = LIMIT_S, memory_bytes: int = MEMORY_BYTES) -> None:
        self._program, self._title = program, title
        self._limit_s, self._memory_bytes = limit_s, memory_bytes
        self._lock = threading.Lock()
        self._inside: _Inside | None = None
        _ALL.add(self)

    def require(self) -> None:
        """Start it, and wait until it runs. Raises TaskError, with the command to type, if that fails."""
        with self._lock:
            self._there()

    def ask(self, topic: object, said: str) -> object:
        """Return the program's judgement of `said`, as plain data; None if it raised or did not answer in time. Waits.

        `topic` is plain data for JSON, and only the operator's: it is read in the process that never sees texts of
        strangers. Raises TaskError if the sandbox cannot be started, or if the program cannot prepare for the topic.
        """
        question = json.dumps({"topic": topic, "said": said}).encode() + b"\n"
        with self._lock:
            inside = self._there()
            reply = inside.ask(question)
            if reply is None:
                self._end()
                return None
        told = json.loads(reply)
        if "failed" in told:
            raise TaskError(f"{self._title} fails at what the task asks of it: {told['failed']}")
        return _read(told["answer"])

    def close(self) -> None:
        """End it. The next question starts another one."""
        with self._lock:
            self._end()

    @property
    def pid(self) -> int | None:
        """The process id of the sandbox, while there is one."""
        return None if self._inside is None else self._inside.process.pid

    def _there(self) -> _Inside:
        """Return the running sandbox, and start one if needed. Raises TaskError."""
        if self._inside is not None and self._inside.process.poll() is not None:
            self._end()
        if self._inside is None:
            self._inside = self._start()
        return self._inside

    def _start(self) -> _Inside:
        """Start a sandbox. Raises TaskError."""
        require_bubblewrap(f"{self._title} may execute what it reads, so it is only")
        with ExitStack() as stack:
            words, named = stack.enter_context(open_nameless_file(b"")), stack.enter_context(open_nameless_file(b""))
            forbidden = stack.enter_context(open_nameless_file(call_filter()))
            here, there = socket.socketpair()
            stack.callback(there.close)
            settings = {
                "program": self._program,
                "title": self._title,
                "path": packages(),
                "line": there.fileno(),
                "limit_s": self._limit_s,
                "memory_bytes": self._memory_bytes,
                "no_fork": fork_filter().hex(),
            }
            told = ("--info-fd", str(named), "--seccomp", str(forbidden))
            inside = _Inside(
                # Its life is tied to the socket, not to the thread that starts it.
                process=start(
                    [*_walls(), *told, *_interpreter(settings)],
                    (subprocess.DEVNULL, words, words),
                    (there.fileno(), named, forbidden),
                    stays=True,
                ),
                line=here,
                info=os.dup(named),
            )
            there.close()
            if inside.ask(b"") is None:
                inside.end()
                said = os.pread(words, MAX_LINE_BYTES, 0).decode(errors="replace").strip()[-MAX_WORDS:]
                if said.startswith("bwrap:"):
                    raise TaskError(explain_failure(said))
                raise TaskError(f"{self._title} cannot be started; its output: {said or 'nothing'}")
        return inside

    def _end(self) -> None:
        if self._inside is not None:
            self._inside.end()
            self._inside = None


@dataclass(frozen=True, kw_only=True)
class _Inside:
    """A running sandbox. `info`: a descriptor of the file that bwrap wrote about it."""

    process: subprocess.Popen[bytes]
    line: socket.socket
    info: int

    def ask(self, question: bytes) -> bytes | None:
        """Send `question`, and return the next line; None if there is none in time. Waits for WALL_S at most."""
        try:
            self.line.sendall(question)
        except OSError:
            return None
        until = time.monotonic() + WALL_S
        waiting = select.poll()
        waiting.register(self.line, select.POLLIN)
        said = b""
        while not said.endswith(b"\n") and len(said) < MAX_LINE_BYTES:
            left_s = until - time.monotonic()
            if left_s <= 0 or not waiting.poll(1000 * left_s):
                return None
            try:
                part = self.line.recv(4096)
            except OSError:
                return None
            if not part:
                return None
            said += part
        return said

    def end(self) -> None:
        """End it and all processes that it started."""
        self.line.close()
        if self.process.poll() is None:
            pidfd = os.pidfd_open(self.process.pid)
            end_first(os.pread(self.info, 4096, 0), pidfd)
            os.close(pidfd)
        self.process.kill()
        self.process.wait()
        os.close(self.info)


def packages() -> list[str]:
    """Return the directories of installed packages on this interpreter's path, as the sandbox sees them."""
    return [path for path in sys.path if Path(path).name in PACKAGES and Path(path).is_dir()]


def close_all() -> None:
    """End all sandboxes that answer no question now. They start again when they are asked."""
    for confined in list(_ALL):
        if confined._lock.acquire(blocking=False):
            try:
                confined._end()
            finally:
                confined._lock.release()


def _read(answer: str | None) -> object:
    """Return the plain data in an answer, which a stranger may have written."""
    if answer is None:
        return None
    try:
        return json.loads(answer)
    except ValueError:
        return None


def _walls() -> list[str]:
    """Return bwrap's options. Nothing inside is writable, and there is no /proc."""
    return [
        *shut({"HOME": "/", **ALONE, **QUICK}),
        *("--dev", "/dev"),
        # For libraries in /usr/local, and those of Debian's alternatives.
        *("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        *("--ro-bind-try", "/etc/alternatives", "/etc/alternatives"),
        *(word for path in _seen() for word in ("--ro-bind", path, path)),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"),
    ]


def _seen() -> Iterator[str]:
    """Yield the paths outside /usr that are needed."""
    prefixes = dict.fromkeys((sys.base_prefix, sys.base_exec_prefix))
    libraries = [str(Path(prefix, name)) for prefix in prefixes for name in ("lib", "lib64")]
    for path in dict.fromkeys((_executable(), *libraries, *packages())):
        if Path(path).exists() and not Path(path).is_relative_to("/usr"):
            yield path


@lru_cache(maxsize=1)
def _executable() -> str:
    """Return the interpreter itself. That of a virtual environment is only a link to it."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def _interpreter(settings: dict[str, object]) -> list[str]:
    """Return the command without site, user packages and working directory on its path; the settings name the path."""
    flags = ("-P", "-s", "-S", "-B", "-X", "utf8", "-c", SERVER.read_text(encoding="utf-8"))
    return [_executable(), *flags, json.dumps(settings)]


atexit.register(close_all)
