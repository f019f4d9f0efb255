"""Ask a library about what strangers wrote, in a sandbox of bubblewrap's, since the library may run it.

reasoning-gym scores some answers with `eval`, and sympy compiles text wherever it reads or evaluates a formula
(`parse_expr`, `sympify`, `lambdify`). So what a policy says is a program to them. The sandbox is like that of programs
under test (`node.tasks.sandbox.bubblewrap`), but stays: the library is imported once, and each text is judged in a
process forked from that one (`node.tasks.sandbox.confined_program`).

Invariants:
- No text of strangers reaches the library outside the sandbox. Where there is none, `require` and `ask` raise.
- The sandbox has no network, no environment, no capability, no /proc and no file that can be written. What can be read
  is /usr, the interpreter's own files, and packages in directories named site-packages or dist-packages.
- A text can change what it is worth itself, and nothing else: the next one is judged as if it had never been.
- Every question is answered after LIMIT_S of processor time or WALL_S, or has no answer, and the next question finds a
  process. The sandbox ends with the process that asks.

Unlike programs under test it keeps the user that the verifier has, also where that is root, whose interpreter and
packages often lie where nobody else can read. What root could do more, without capabilities and /proc, is to start
processes without end, and the process that judges can start none.
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
"""Of processor time for one text, as long as math-verify's own limit. Nearly all take milliseconds. Time on the clock
would make the rewards of a busy machine other than those of an idle one."""

WALL_S = 120.0
"""Of the clock: a process that neither works nor answers is given up. Also for its start, which takes seconds."""

MEMORY_BYTES = 2 << 30
"""Of address space, for the process that holds the library and for the one that judges: sympy takes a tenth of it."""

MAX_LINE_BYTES = 64 << 10
"""Of an answer, or of an error that is told."""

MAX_WORDS = 2_000
"""Characters of its last words that are told when it cannot be started."""

PACKAGES = ("site-packages", "dist-packages")
"""Directories that installers make for packages alone: others on the path, such as the working directory, may hold an
operator's keys."""

ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Threads of numpy's would be of no use to a process that was forked."""

QUICK = {"PYTHONMALLOC": "malloc", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
"""Memory in large pages, which glibc asks the kernel for: of 60 MB a fork then copies a third as long."""

SERVER = Path(__file__).with_name("confined_program.py")

_ALL: weakref.WeakSet[Confined] = weakref.WeakSet()


class Confined:
    """A library behind walls, started when it is first asked. One question at a time: whoever else asks waits.

    `program` is the source of a module with `load()`, which imports the library, and `prepare(topic)`, which gives a
    function that judges a text; it imports nothing else. `title` is what errors call it.
    """

    def __init__(self, program: str, title: str, *, limit_s: int = LIMIT_S, memory_bytes: int = MEMORY_BYTES) -> None:
        self._program, self._title = program, title
        self._limit_s, self._memory_bytes = limit_s, memory_bytes
        self._lock = threading.Lock()
        self._inside: _Inside | None = None
        _ALL.add(self)

    def require(self) -> None:
        """Start it. Waits. Raises TaskError, with what to type, where it cannot be started."""
        with self._lock:
            self._there()

    def ask(self, topic: object, said: str) -> object:
        """What the program judges of `said`, as plain data: None where it raised, or did not answer in time. Waits.

        `topic` is plain data for JSON, of the operator's alone: it is read where texts of strangers never are. Raises
        TaskError where the sandbox cannot be started, or the program cannot prepare for the topic.
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
        """End it. The next question starts another."""
        with self._lock:
            self._end()

    @property
    def pid(self) -> int | None:
        """Of the sandbox, while there is one."""
        return None if self._inside is None else self._inside.process.pid

    def _there(self) -> _Inside:
        """Raises TaskError."""
        if self._inside is not None and self._inside.process.poll() is not None:
            self._end()
        if self._inside is None:
            self._inside = self._start()
        return self._inside

    def _start(self) -> _Inside:
        """Raises TaskError."""
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
                # It ends with the line, not with the thread that starts it.
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
                raise TaskError(f"{self._title} cannot be started; it said: {said or 'nothing'}")
        return inside

    def _end(self) -> None:
        if self._inside is not None:
            self._inside.end()
            self._inside = None


@dataclass(frozen=True, kw_only=True)
class _Inside:
    """A sandbox that was started. `info` is a descriptor of what bwrap told of it."""

    process: subprocess.Popen[bytes]
    line: socket.socket
    info: int

    def ask(self, question: bytes) -> bytes | None:
        """The next line of what it says, after `question`; None where there is none in time. Waits, WALL_S at most."""
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
        """End it and all that it started, wherever they are."""
        self.line.close()
        if self.process.poll() is None:
            pidfd = os.pidfd_open(self.process.pid)
            end_first(os.pread(self.info, 4096, 0), pidfd)
            os.close(pidfd)
        self.process.kill()
        self.process.wait()
        os.close(self.info)


def packages() -> list[str]:
    """Directories of installed packages on this interpreter's path, as the sandbox sees them."""
    return [path for path in sys.path if Path(path).name in PACKAGES and Path(path).is_dir()]


def close_all() -> None:
    """End all that nobody is asking just now: they start again when they are asked."""
    for confined in list(_ALL):
        if confined._lock.acquire(blocking=False):
            try:
                confined._end()
            finally:
                confined._lock.release()


def _read(answer: str | None) -> object:
    """Plain data of what was said; a stranger may have said it."""
    if answer is None:
        return None
    try:
        return json.loads(answer)
    except ValueError:
        return None


def _walls() -> list[str]:
    """bwrap's options. Nothing in there can be written, and there is no /proc."""
    return [
        *shut({"HOME": "/", **ALONE, **QUICK}),
        *("--dev", "/dev"),
        # Where libraries of /usr/local and of Debian's alternatives are found.
        *("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"),
        *("--ro-bind-try", "/etc/alternatives", "/etc/alternatives"),
        *(word for path in _seen() for word in ("--ro-bind", path, path)),
        *("--remount-ro", "/dev", "--remount-ro", "/", "--chdir", "/"),
    ]


def _seen() -> Iterator[str]:
    """What is needed outside /usr."""
    prefixes = dict.fromkeys((sys.base_prefix, sys.base_exec_prefix))
    libraries = [str(Path(prefix, name)) for prefix in prefixes for name in ("lib", "lib64")]
    for path in dict.fromkeys((_executable(), *libraries, *packages())):
        if Path(path).exists() and not Path(path).is_relative_to("/usr"):
            yield path


@lru_cache(maxsize=1)
def _executable() -> str:
    """The interpreter itself, not that of a virtual environment, which is a link to it."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)


def _interpreter(settings: dict[str, object]) -> list[str]:
    """No site, no user's packages, no working directory on its path: that is in the settings."""
    flags = ("-P", "-s", "-S", "-B", "-X", "utf8", "-c", SERVER.read_text(encoding="utf-8"))
    return [_executable(), *flags, json.dumps(settings)]


atexit.register(close_all)
