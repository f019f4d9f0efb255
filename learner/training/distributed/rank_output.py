"""Pass on what each rank prints on stderr, and find out in which order the ranks end.

Invariants:

- A line of a rank is passed on whole, after the rank's number, as soon as it is complete.
- No file is made. (torchrun can separate logs only in files, which grow for as long as a run lasts.)
- The first rank to end is known, even though torchrun looks only ten times a second and so may look after other ranks
  have ended because of it.
"""

from __future__ import annotations

import os
import select
import selectors
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs

from learner.trainer_api.exit_reasons import HEARD_LINES

READ_BYTES = 1 << 16
"""Bytes that a pipe holds."""

MAX_LINE_BYTES = 4096
"""A longer line is passed on in parts, so that a progress bar without line ends does not hold up its text."""


@dataclass(eq=False)
class Pipe:
    """One rank's stderr: both ends of a pipe; the rank has the writing end, too."""

    rank: int
    reading: int
    writing: int
    pending: bytes = b""


class Ear(LogsSpecs):
    """Reads the ranks' stderr on a thread while it is open. torchrun asks it where stderr goes."""

    def __init__(self) -> None:
        super().__init__()
        self._pipes: list[Pipe] = []
        self._kept: defaultdict[int, deque[str]] = defaultdict(lambda: deque(maxlen=HEARD_LINES))
        self._over, self._tell_over = os.pipe()
        self._thread = threading.Thread(target=self._listen, name="ear", daemon=True)

    @property
    def root_log_dir(self) -> str:
        return os.devnull

    def reify(self, envs: Mapping[int, Mapping[str, str]]) -> LogsDest:
        """Return the pipes for torchrun, which calls this before it starts the ranks, with the environment of each."""
        for local in sorted(envs):
            reading, writing = os.pipe()
            os.set_blocking(reading, False)
            self._pipes.append(Pipe(rank=int(envs[local]["RANK"]), reading=reading, writing=writing))
        self._thread.start()
        inherited = dict.fromkeys(sorted(envs), "")
        return LogsDest(
            stdouts=inherited,
            # The name of an open pipe, which torchrun opens as if it were a file.
            stderrs={local: f"/dev/fd/{pipe.writing}" for local, pipe in zip(sorted(envs), self._pipes, strict=True)},
            error_files=dict.fromkeys(sorted(envs), os.devnull),
        )

    def __enter__(self) -> Ear:
        return self

    def __exit__(self, *_: object) -> None:
        """Pass on the output so far. Does not wait: a rank's own children may live on, and print nothing."""
        os.close(self._tell_over)
        if self._thread.is_alive():
            self._thread.join()
        os.close(self._over)
        for pipe in self._pipes:
            os.close(pipe.reading)
            os.close(pipe.writing)

    def last_lines(self, rank: int) -> tuple[str, ...]:
        """Return the last HEARD_LINES lines of the rank with that number."""
        return tuple(self._kept[rank])

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._over, selectors.EVENT_READ)
            for pipe in self._pipes:
                selector.register(pipe.reading, selectors.EVENT_READ, pipe)
            over = False
            while not over:
                ready = [key.data for key, _ in selector.select()]
                over = None in ready
                for pipe in self._pipes if over else ready:
                    self._read(pipe)
            for pipe in self._pipes:
                self._say(pipe, pipe.pending)

    def _read(self, pipe: Pipe) -> None:
        """Pass on whole lines until the pipe is empty."""
        with suppress(BlockingIOError):
            while part := os.read(pipe.reading, READ_BYTES):
                *lines, pipe.pending = (pipe.pending + part).replace(b"\r", b"\n").split(b"\n")
                if len(pipe.pending) > MAX_LINE_BYTES:
                    lines, pipe.pending = [*lines, pipe.pending], b""
                for line in lines:
                    self._say(pipe, line)

    def _say(self, pipe: Pipe, line: bytes) -> None:
        if text := line.decode(errors="replace").rstrip():
            self._kept[pipe.rank].append(text)
            with suppress(OSError):  # nobody reads stderr any more, and the node is gone
                sys.stderr.write(f"rank {pipe.rank}: {text}\n")  # one write, or torchrun's output may come between
                sys.stderr.flush()


LOOKS_PER_S = 100
"""How often to look for new children until all are known. They take a second or more to import torch."""


class Deaths:
    """Records in which order, and when, the first `count` child processes after its creation have ended.

    It needs Linux's pidfds: epoll returns those that became ready in order, so the order does not depend on how soon
    one looks. On other systems no order is known.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._ended_s: dict[int, float] = {}  # ordered by their ends
        self._pids: dict[int, int] = {}
        self._lock = threading.Lock()
        self._epoll = select.epoll() if hasattr(os, "pidfd_open") and hasattr(select, "epoll") else None
        if self._epoll is not None:
            children = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children")
            for work in (partial(self._find, self._epoll, children), partial(self._watch, self._epoll)):
                threading.Thread(target=work, name="deaths", daemon=True).start()

    def place(self, pid: int) -> int:
        """Return how many processes ended before this one; if it is unknown, the number of all that ended."""
        self._look()
        return list(self._ended_s).index(pid) if pid in self._ended_s else len(self._ended_s)

    def at_s(self, pid: int) -> float:
        """Return when it ended, by `time.monotonic`; if that is unknown, return now."""
        self._look()
        return self._ended_s.get(pid, time.monotonic())

    def _look(self) -> None:
        """Record the processes that have ended since the last call."""
        if self._epoll is None:
            return
        with self._lock:
            for number, _ in self._epoll.poll(0):
                self._epoll.unregister(number)
                self._ended_s[self._pids[number]] = time.monotonic()

    def _watch(self, epoll: select.epoll) -> None:
        """Look whenever a process ends."""
        while True:
            if select.select([epoll], [], []):
                self._look()

    def _find(self, epoll: select.epoll, children: Path) -> None:
        """Find the child processes, which belong to the thread that made this object."""
        known: set[int] = set()
        with suppress(OSError):
            while len(known) < self._count:
                for pid in set(map(int, children.read_text().split())) - known:
                    known.add(pid)
                    with suppress(ProcessLookupError):  # it is gone and was reaped: nobody asks about it
                        number = os.pidfd_open(pid)
                        self._pids[number] = pid
                        epoll.register(number, select.EPOLLIN)
                time.sleep(1 / LOOKS_PER_S)
