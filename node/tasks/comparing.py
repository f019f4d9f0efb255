"""Ask math-verify, which runs in a process of its own (`node.tasks.comparing_program`), whether two texts are equal.

Its own limits are alarms, which nothing hears that is inside one of Python's large integers, as 10^{10^{10}} is, and
which no thread but the main one can set. A process can be ended anywhere.

Invariants:
- Every question is answered, after LIMIT_S of processor time or WALL_S: what took longer is not equal, and the next
  question finds a new process.
- The process ends with whoever started it.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from typing import IO

from node.tasks.port import TaskError

LIMIT_S = 5
"""Of processor time for one question, as long as math-verify's own limit. Nearly all take milliseconds. Time on the
clock would make the rewards of a busy machine other than those of an idle one."""

WALL_S = 120.0
"""Of the clock: a process that neither works nor answers is given up. Also for its start, which takes seconds."""

MEMORY_BYTES = 2 << 30
"""Of address space: sympy takes a tenth of it."""

WORDS = 2_000
"""Characters of its last words that are told when it cannot be started."""


class Comparing:
    """math-verify's process, started when it is first asked. One question at a time: whoever else asks waits."""

    def __init__(self, *, limit_s: int = LIMIT_S, memory_bytes: int = MEMORY_BYTES) -> None:
        self._argv = [sys.executable, "-m", "node.tasks.comparing_program", str(limit_s), str(memory_bytes)]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def are_equal(self, reference: str, said: str) -> bool:
        """Whether two texts are equal as math-verify reads them. Waits. Raises TaskError where it cannot be started."""
        question = json.dumps({"reference": reference, "said": said}).encode() + b"\n"
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = self._start()
            answer = _asked(self._process, question)
            if answer is None:
                self._end()
            return answer is True

    def close(self) -> None:
        """End the process. The next question starts another."""
        with self._lock:
            self._end()

    def _start(self) -> subprocess.Popen[bytes]:
        with tempfile.TemporaryFile() as words:
            # A session of its own: Ctrl-C in the terminal is for whoever started it.
            process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=words,
                env={**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
                start_new_session=True,
            )
            if _asked(process, b"") is None:
                _ended(process)
                words.seek(0)
                said = words.read().decode(errors="replace").strip()[-WORDS:]
                raise TaskError(f"math-verify cannot be started; it said: {said or 'nothing'}")
        return process

    def _end(self) -> None:
        if self._process is not None:
            _ended(self._process)
            self._process = None


def _asked(process: subprocess.Popen[bytes], question: bytes) -> bool | None:
    """The answer to a question, None where there is none: the process ended, or its time was up."""
    assert process.stdin is not None, "it was asked for"
    assert process.stdout is not None, "it was asked for"
    try:
        process.stdin.write(question)
        process.stdin.flush()
    except OSError:
        return None
    line = _line(process.stdout)
    return None if line is None else json.loads(line)["equal"] is True


def _line(replies: IO[bytes]) -> bytes | None:
    """The next line, None when WALL_S are over or there is none. Waits."""
    until = time.monotonic() + WALL_S
    waiting = select.poll()
    waiting.register(replies, select.POLLIN | select.POLLHUP)
    line = b""
    while not line.endswith(b"\n"):
        left_s = until - time.monotonic()
        if left_s <= 0 or not waiting.poll(1000 * left_s):
            return None
        if not (part := os.read(replies.fileno(), 4096)):
            return None
        line += part
    return line


def _ended(process: subprocess.Popen[bytes]) -> None:
    """End it, wherever it is."""
    process.kill()
    process.communicate()


MATH_VERIFY = Comparing()
"""The process of this one: tasks have no end at which theirs could be closed."""

atexit.register(MATH_VERIFY.close)
