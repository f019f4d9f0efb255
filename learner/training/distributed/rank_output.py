"""What the launcher hears of the ranks that it started: what each says on stderr, and in which order they end.

What always holds: a line of a rank is passed on whole, behind the rank's number, as soon as it is there; no file is
made (torchrun could keep logs apart in files only, which grow for as long as a run lasts); who ended first is known
also when torchrun looks, which it does ten times a second, after all that this death brought about has happened, too.
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
"""What a pipe holds."""

MAX_LINE_BYTES = 4096
"""A longer line is passed on in several: a progress bar without line ends must not be waited for."""


@dataclass(eq=False)
class Pipe:
    """What one rank says: both ends of a pipe, of which the rank has the writing one, too."""

    rank: int
    reading: int
    writing: int
    pending: bytes = b""


class Ear(LogsSpecs):
    """Listens while it is open, on a thread of its own. torchrun asks it where the ranks' stderr goes."""

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
        """Called by torchrun before it starts the ranks, with the environment of each."""
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
        """Pass on what was said until now. Waits for nobody: a rank's own children may live on, and be silent."""
        os.close(self._tell_over)
        if self._thread.is_alive():
            self._thread.join()
        os.close(self._over)
        for pipe in self._pipes:
            os.close(pipe.reading)
            os.close(pipe.writing)

    def last_lines(self, rank: int) -> tuple[str, ...]:
        """What the rank of that number said, its last HEARD_LINES lines."""
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
        """Pass on whole lines until there is no more."""
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
            with suppress(OSError):  # nobody listens any more, and the node is gone
                sys.stderr.write(f"rank {pipe.rank}: {text}\n")  # at once, or torchrun's own words may come between
                sys.stderr.flush()


LOOKS_PER_S = 100
"""How often new children are looked for until all are known. They take a second and more to import torch."""


class Deaths:
    """In which order, and when, the processes that this one started have ended: the first `count` of them, from when
    it is made.

    Linux alone tells, by pidfds: of those that became ready since it was last asked epoll tells the first first, so the
    order does not depend on how soon one looks. Elsewhere no order is known.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._ended_s: dict[int, float] = {}  # in the order in which they ended
        self._pids: dict[int, int] = {}
        self._lock = threading.Lock()
        self._epoll = select.epoll() if hasattr(os, "pidfd_open") and hasattr(select, "epoll") else None
        if self._epoll is not None:
            children = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children")
            for work in (partial(self._find, self._epoll, children), partial(self._watch, self._epoll)):
                threading.Thread(target=work, name="deaths", daemon=True).start()

    def place(self, pid: int) -> int:
        """How many ended before it; for one of which nothing is known, all."""
        self._look()
        return list(self._ended_s).index(pid) if pid in self._ended_s else len(self._ended_s)

    def at_s(self, pid: int) -> float:
        """When it ended, by `time.monotonic`; for one of which nothing is known, now."""
        self._look()
        return self._ended_s.get(pid, time.monotonic())

    def _look(self) -> None:
        """Note who has ended since this was last asked."""
        if self._epoll is None:
            return
        with self._lock:
            for number, _ in self._epoll.poll(0):
                self._epoll.unregister(number)
                self._ended_s[self._pids[number]] = time.monotonic()

    def _watch(self, epoll: select.epoll) -> None:
        """Look whenever somebody ends."""
        while True:
            if select.select([epoll], [], []):
                self._look()

    def _find(self, epoll: select.epoll, children: Path) -> None:
        """Get to know the children, which are those of the thread that made this."""
        known: set[int] = set()
        with suppress(OSError):
            while len(known) < self._count:
                for pid in set(map(int, children.read_text().split())) - known:
                    known.add(pid)
                    with suppress(ProcessLookupError):  # it is gone and was collected: nobody asks about it
                        number = os.pidfd_open(pid)
                        self._pids[number] = pid
                        epoll.register(number, select.EPOLLIN)
                time.sleep(1 / LOOKS_PER_S)
