"""Serve questions about what strangers wrote, inside a sandbox: the program that `node.tasks.sandbox.confined_library`
starts there.

    python -c SOURCE SETTINGS      lines of JSON over the socket `line`: a topic and a text, then an answer

    {"topic": what the operator chose, "said": text}    -> {"answer": text | null} | {"failed": text}

The program in SETTINGS defines `load()`, which imports its library, and `prepare(topic)`, which gives a function of
the text. Each text is judged in a process of its own, forked from this one: a library may run what the text says.

Invariants:
- This process never touches a text of strangers, and the process that does cannot reach this one: it may not fork,
  this one's memory and descriptors are closed to it, and nothing that it can write to outlives it.
- The kernel ends the process that judges after `limit_s` of processor time. Whatever it says is one short text.
- {"answer": null} is said once before the first question, when the libraries are imported.

It stands alone: nothing of this package is visible where it runs.
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
"""Of what one judgement says: a number, or true or false."""

MAX_FAILURE_CHARS = 2_000
"""Of an error that is told."""

PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 4, 22, 38, 2
"""Of Linux, see prctl(2)."""

Judge = Callable[[str], object]


class _Filter(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


class _Kernel:
    """What is asked of the kernel, and was looked up before a stranger's text came."""

    def __init__(self, limit_s: int, no_fork: bytes) -> None:
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._limit_s = limit_s
        self._filter = _Filter(len(no_fork) // 8, no_fork)

    def close_to_others(self) -> None:
        """Let nobody look into this process, or into those that it forks, not even those themselves."""
        self._set(PR_SET_DUMPABLE, 0)

    def bind(self) -> None:
        """Let this process start no other, and end after its processor time."""
        resource.setrlimit(resource.RLIMIT_CPU, (self._limit_s, self._limit_s))
        self._set(PR_SET_NO_NEW_PRIVS, 1)
        self._set(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.addressof(self._filter))

    def _set(self, what: int, first: int, second: int = 0) -> None:
        """Raises OSError, so that no text is judged without."""
        if self._prctl(what, *map(ctypes.c_ulong, (first, second, 0, 0))) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({what})")


def main() -> None:
    """Serve until the line ends."""
    settings = json.loads(sys.argv[1])
    sys.path += settings["path"]
    _lower(resource.RLIMIT_AS, settings["memory_bytes"])
    _lower(resource.RLIMIT_CORE, 0)
    line = settings["line"]
    requests, replies = os.fdopen(line, "rb"), os.fdopen(os.dup(line), "wb")
    space: dict[str, Any] = {"__name__": "confined"}
    exec(compile(settings["program"], settings["title"], "exec"), space)  # the operator's own, not a stranger's
    space["load"]()
    kernel = _Kernel(settings["limit_s"], bytes.fromhex(settings["no_fork"]))
    kernel.close_to_others()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # those who judge could send it
    _leave_nothing_open({requests.fileno(), replies.fileno()})
    _lower(resource.RLIMIT_FSIZE, 0)  # only now: what it says when it cannot start goes to a file
    gc.freeze()  # what is imported stays shared with those who judge
    _reply(replies, {"answer": None})
    while request := requests.readline():
        asked = json.loads(request)
        try:
            judge = space["prepare"](asked["topic"])
        except Exception as error:  # of a library, about what the operator chose
            _reply(replies, {"failed": f"{type(error).__name__}: {error}"[:MAX_FAILURE_CHARS]})
            continue
        _reply(replies, {"answer": _judged(judge, asked["said"], kernel, (requests, replies))})


def _judged(judge: Judge, said: str, kernel: _Kernel, line: tuple[BinaryIO, BinaryIO]) -> str | None:
    """What `judge` says to a text, in a process of its own; None where it says nothing."""
    hear, tell = os.pipe()
    if (judging := os.fork()) == 0:
        _judge(judge, said, kernel, (line[0].fileno(), line[1].fileno(), hear), tell)
    os.close(tell)
    answer = b""
    waiting = select.poll()
    waiting.register(hear, select.POLLIN)
    waiting.register(line[0], select.POLLIN)  # nothing is asked meanwhile: whatever comes is its end
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
        os._exit(0)  # what it raised is no answer


def _lower(kind: int, limit: int) -> None:
    _, hard = resource.getrlimit(kind)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, limit))


def _leave_nothing_open(needed: set[int]) -> None:
    """Standard streams go nowhere, and every other descriptor is closed: those who judge would share them."""
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
