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
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs

from learner.last_words import LAST_WORDS, last_words

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
        self._kept: defaultdict[int, deque[str]] = defaultdict(lambda: deque(maxlen=LAST_WORDS))
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

    def last_words(self, rank: int) -> tuple[str, ...]:
        """What the rank of that number said last."""
        return last_words(self._kept[rank])

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
    """In which order the processes that this one started have ended: the first `count` of them, from when it is made.

    Linux alone tells, by pidfds: of those that became ready since it was last asked epoll tells the first first, so it
    does not matter how late one looks. Elsewhere no order is known.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._order: list[int] = []
        self._pids: dict[int, int] = {}
        self._epoll = select.epoll() if hasattr(os, "pidfd_open") and hasattr(select, "epoll") else None
        if self._epoll is not None:
            children = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children")
            threading.Thread(target=self._find, args=(self._epoll, children), name="deaths", daemon=True).start()

    def place(self, pid: int) -> int:
        """How many ended before it; for one of which nothing is known, all."""
        if self._epoll is not None and self._pids:
            self._order += [one for number, _ in self._epoll.poll(0) if (one := self._pids[number]) not in self._order]
        return self._order.index(pid) if pid in self._order else len(self._order)

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
