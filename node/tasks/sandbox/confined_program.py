"""Answer questions about texts of strangers: the program that `node.tasks.sandbox.confined_library` runs in a sandbox.

    python -c SOURCE SETTINGS      lines of JSON over the socket `line`: a topic and a text, then an answer

    {"topic": chosen by the operator, "said": text}    -> {"answer": text | null} | {"failed": text}

The program in SETTINGS defines `load()`, which imports its library, and `prepare(topic)`, which returns a function that
judges a text. Each text is judged in a process of its own, forked from this one, because a library may execute the
text.

Invariants:

- This process never touches a text of strangers, and the process that does cannot reach this one. It may not fork, it
  cannot use this one's memory and descriptors, and nothing that it can write outlives it.
- The kernel ends the process that judges after `limit_s` of processor time. All that it returns is one short text.
- {"answer": null} is sent once before the first question, when the libraries are imported.

The program stands alone, because nothing of this package is visible where it runs.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO, NoReturn

MAX_ANSWER_BYTES = 64
"""Maximum bytes of one judgement: a number, or true or false."""

MAX_FAILURE_CHARS = 2_000
"""Maximum characters of an error message."""

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 4, 22, 38, 2
"""Constants of Linux, see prctl(2)."""

Judge = Callable[[str], object]


class _Filter(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


class _Kernel:
    """The calls of the kernel that are needed. They are looked up before a stranger's text arrives."""

    def __init__(self, limit_s: int, no_fork: bytes) -> None:
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._limit_s = limit_s
        self._filter = _Filter(len(no_fork) // 8, no_fork)

    def close_to_others(self) -> None:
        """Forbid all processes to look into this one or its forks, even the forks themselves."""
        self._set(PR_SET_DUMPABLE, 0)

    def bind(self) -> None:
        """Forbid this process to start others, and limit its processor time."""
        resource.setrlimit(resource.RLIMIT_CPU, (self._limit_s, self._limit_s))
        self._set(PR_SET_NO_NEW_PRIVS, 1)
        self._set(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(self._filter))

    def _set(self, what: int, first: int, second: int = 0) -> None:
        """Call prctl. Raises OSError, so that no text is judged without it."""
        if self._prctl(what, *map(ctypes.c_ulong, (first, second, 0, 0))) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({what})")


def main() -> None:
    """Answer questions until the socket closes."""
    settings = json.loads(sys.argv[1])
    sys.path += settings["path"]
    _lower(resource.RLIMIT_AS, settings["memory_bytes"])
    _lower(resource.RLIMIT_CORE, 0)
    line = settings["line"]
    requests, replies = os.fdopen(line, "rb"), os.fdopen(os.dup(line), "wb")
    space: dict[str, Any] = {"__name__": "confined"}
    exec(compile(settings["program"], settings["title"], "exec"), space)  # written by the operator, not by a stranger
    space["load"]()
    kernel = _Kernel(settings["limit_s"], bytes.fromhex(settings["no_fork"]))
    kernel.close_to_others()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a judging process could send it
    _leave_nothing_open({requests.fileno(), replies.fileno()})
    _lower(resource.RLIMIT_FSIZE, 0)  # only now, because an error at the start is written to a file
    gc.freeze()  # keeps the imported modules shared with the judging processes
    _reply(replies, {"answer": None})
    while request := requests.readline():
        asked = json.loads(request)
        try:
            judge = space["prepare"](asked["topic"])
        except Exception as error:  # from a library, about the operator's topic
            _reply(replies, {"failed": f"{type(error).__name__}: {error}"[:MAX_FAILURE_CHARS]})
            continue
        _reply(replies, {"answer": _judged(judge, asked["said"], kernel, (requests, replies))})


def _judged(judge: Judge, said: str, kernel: _Kernel, line: tuple[BinaryIO, BinaryIO]) -> str | None:
    """Return the judgement of a text, made in a process of its own; None if there is none."""
    hear, tell = os.pipe()
    if (judging := os.fork()) == 0:
        _judge(judge, said, kernel, (line[0].fileno(), line[1].fileno(), hear), tell)
    os.close(tell)
    answer = b""
    waiting = select.poll()
    waiting.register(hear, select.POLLIN)
    waiting.register(line[0], select.POLLIN)  # no question can arrive now, so any event is the end of the socket
    ready = {descriptor for descriptor, _ in waiting.poll()}
    if hear in ready:
        answer = os.read(hear, MAX_ANSWER_BYTES)
    os.close(hear)
    os.kill(judging, signal.SIGKILL)
    os.waitpid(judging, 0)
    return answer.decode("latin-1") or None


def _judge(judge: Judge, said: str, kernel: _Kernel, to_close: tuple[int, ...], tell: int) -> NoReturn:
    try:
        for descriptor in to_close:
            os.close(descriptor)
        kernel.bind()
        os.write(tell, json.dumps(judge(said)).encode()[:MAX_ANSWER_BYTES])
    finally:
        os._exit(0)  # an exception is no answer


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))


def _leave_nothing_open(needed: set[int]) -> None:
    """Connect the standard streams to nothing and close all other descriptors, which judging processes would share."""
    nowhere = os.open("/dev/null", os.O_RDWR)
    for stream in range(3):
        os.dup2(nowhere, stream)
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    for descriptor in range(3, min(most, 4096)):
        if descriptor not in needed:
            with suppress(OSError):
                os.close(descriptor)


def _reply(replies: BinaryIO, said: dict[str, object]) -> None:
    replies.write(json.dumps(said).encode() + b"\n")
    replies.flush()


if __name__ == "__main__":
    main()
