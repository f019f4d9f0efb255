"""Run jobs on several threads and hand their results back in the order of the jobs.

numpy, zstandard and hashlib release the interpreter's lock while they work on large arrays, so threads are enough: no
process is started and nothing is copied between any. `bytes(view)`, `tobytes` and the comparison of two bytes keep the
lock, so jobs avoid these on whole segments.

The caller's thread is one of the threads: while it waits for a result, it runs jobs that nobody has begun. With one
thread more than cores, a third of what the second core gained was lost to waiting for the interpreter's lock.

Invariants:
- Results and errors come in the order of the jobs, as if there were one thread.
- A pool of one thread starts none: each job runs when its result is asked for.
- At most AHEAD_PER_THREAD jobs a thread were begun or are done beyond the results that were handed out.
- When the results are closed early, no job of theirs runs any more, and none of their futures is left pending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")

AHEAD_PER_THREAD = 2
"""Jobs per thread between the oldest result that is wanted and the newest job. With one, the other threads would wait
for the slowest job; each more costs the memory of one result."""


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """So many threads, the caller's included, until the `with` block ends. Several `in_order` at a time share them."""

    def __init__(self, num_threads: int = 1) -> None:
        self._num_ahead = AHEAD_PER_THREAD * num_threads
        self._threads = ThreadPoolExecutor(num_threads - 1, "patch") if num_threads > 1 else None

    def __exit__(self, *_: object) -> None:
        if self._threads:
            self._threads.shutdown(cancel_futures=True)

    def in_order(self, jobs: Iterable[Callable[[], T]]) -> Generator[T]:
        """Run `jobs` and yield their results. An iterator of jobs is advanced by the caller's thread alone.

        Raises what a job raises, and what `jobs` raises, after the results of all jobs before.
        """
        if self._threads is None:
            for job in jobs:
                yield job()
            return
        rest = _begin(self._threads, iter(jobs))
        begun: deque[_Begun[T]] = deque()
        try:
            while True:
                while len(begun) < self._num_ahead and (following := next(rest, None)):
                    begun.append(following)
                if not begun:
                    return
                oldest = begun[0]
                while not oldest.future.done() and any(one.run_here() for one in begun):
                    pass
                begun.popleft()
                yield oldest.future.result()
        finally:
            wait([one.future for one in begun if not one.future.cancel()])


class _Begun(Generic[T]):
    """A job that was handed to the threads, and what will come of it."""

    def __init__(self, job: Callable[[], T], future: Future[T]) -> None:
        self.future = future
        self._job = job

    def run_here(self) -> bool:
        """Run the job in this thread; False if another one has it or had it."""
        if not self.future.cancel():
            return False
        self.future = _outcome(self._job)
        return True


def _begin(threads: ThreadPoolExecutor, jobs: Iterator[Callable[[], T]]) -> Iterator[_Begun[T]]:
    """Submit each job when it is asked for. An error of `jobs` itself takes the place of the job that it kept away."""
    try:
        for job in jobs:
            yield _Begun(job, threads.submit(job))
    except Exception as error:
        failed: Future[T] = Future()
        failed.set_exception(error)
        yield _Begun(failed.result, failed)


def _outcome(job: Callable[[], T]) -> Future[T]:
    """What came of a job that was run here."""
    future: Future[T] = Future()
    try:
        future.set_result(job())
    except Exception as error:
        future.set_exception(error)
    return future


class Shelf(Generic[T]):
    """Things that no two jobs may use at once, such as memory. Any thread may take and put."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._spare: list[T] = []

    def take(self) -> T:
        """Return a thing that was put here, a new one if there is none."""
        try:
            return self._spare.pop()
        except IndexError:
            return self._make()

    def put(self, thing: T) -> None:
        """Let others use `thing`."""
        self._spare.append(thing)

    @contextmanager
    def borrowed(self) -> Iterator[T]:
        """Lend a thing for the `with` block."""
        thing = self.take()
        try:
            yield thing
        finally:
            self.put(thing)
