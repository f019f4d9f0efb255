"""Run jobs on several threads and hand their results back in the order of the jobs.

numpy, zstandard and hashlib release the interpreter's lock while they work on large arrays, so threads are enough: no
process is started, and nothing is copied between processes. `bytes(view)`, `tobytes` and the comparison of two bytes
objects keep the lock, so jobs avoid these on whole segments.

The caller's thread is one of the threads: while it waits for a result, it runs jobs that no thread has begun. With one
thread more than cores, waiting for the interpreter's lock cost a third of what the second core gained.

Invariants:

- Results and errors come in the order of the jobs, as if there were one thread.
- A pool of one thread starts none: each job runs when its result is requested.
- At most AHEAD_PER_THREAD jobs per thread are begun or done beyond the results that the caller received.
- When the results are closed early, none of their jobs runs any more, and none of their futures is left pending.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager
from typing import Generic, TypeVar

T = TypeVar("T")

AHEAD_PER_THREAD = 2
"""Jobs per thread between the oldest awaited result and the newest job. With one, the other threads would wait for the
slowest job; each additional one costs the memory of one result."""


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """A pool of `num_threads` threads, the caller's included, until the `with` block ends.

    Several calls of `in_order` at the same time share them.
    """

    def __init__(self, num_threads: int = 1) -> None:
        self._num_ahead = AHEAD_PER_THREAD * num_threads
        self._threads = ThreadPoolExecutor(num_threads - 1, "patch") if num_threads > 1 else None

    def __exit__(self, *_: object) -> None:
        if self._threads:
            self._threads.shutdown(cancel_futures=True)

    def in_order(self, jobs: Iterable[Callable[[], T]]) -> Generator[T]:
        """Run `jobs` and yield their results. Only the caller's thread advances the iterator of jobs.

        Errors of a job or of `jobs` itself are raised after the results of all earlier jobs.
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
    """A job that was submitted to the threads, and the future of its result."""

    def __init__(self, job: Callable[[], T], future: Future[T]) -> None:
        self.future = future
        self._job = job

    def run_here(self) -> bool:
        """Run the job in this thread. Return False if another thread has begun it."""
        if not self.future.cancel():
            return False
        self.future = _outcome(self._job)
        return True


def _begin(threads: ThreadPoolExecutor, jobs: Iterator[Callable[[], T]]) -> Iterator[_Begun[T]]:
    """Submit each job when it is requested. An error of `jobs` itself takes the place of the next job."""
    try:
        for job in jobs:
            yield _Begun(job, threads.submit(job))
    except Exception as error:
        failed: Future[T] = Future()
        failed.set_exception(error)
        yield _Begun(failed.result, failed)


def _outcome(job: Callable[[], T]) -> Future[T]:
    """Run `job` in this thread and return a finished future with its result or error."""
    future: Future[T] = Future()
    try:
        future.set_result(job())
    except Exception as error:
        future.set_exception(error)
    return future


class Shelf(Generic[T]):
    """A stock of objects, such as memory, that no two jobs may use at once. Any thread may take and put."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._spare: list[T] = []

    def take(self) -> T:
        """Return an object that was put here, or a new one if there is none."""
        try:
            return self._spare.pop()
        except IndexError:
            return self._make()

    def put(self, thing: T) -> None:
        """Put `thing` back for other jobs."""
        self._spare.append(thing)

    @contextmanager
    def borrowed(self) -> Iterator[T]:
        """Lend an object for the `with` block."""
        thing = self.take()
        try:
            yield thing
        finally:
            self.put(thing)
