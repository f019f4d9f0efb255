"""Jobs on several threads: order, errors, how far ahead they run, and that nothing is left behind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.patches.worker_pool import AHEAD_PER_THREAD, Shelf, WorkerPool
from tests.support.examples import examples

WAIT_S = 10.0
"""Longer than any thread takes to begin, on however busy a machine."""

every_size = pytest.mark.parametrize("num_threads", [1, 2, 4])


class Broken(Exception):
    """What a job raises here."""


def outcome(number: int) -> int:
    """The job with this number: every negative one fails."""
    if number < 0:
        raise Broken(number)
    return number


def drained(pool: WorkerPool, jobs: Iterator[Callable[[], int]]) -> tuple[list[int], str]:
    """All results that come, and what ended them."""
    results: list[int] = []
    try:
        for result in pool.in_order(jobs):
            results.append(result)
    except Broken as error:
        return results, str(error)
    return results, "the end"


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.integers(-1, 20), max_size=12), st.booleans(), st.integers(2, 4))
def test_results_and_errors_come_as_from_one_thread(numbers: list[int], broken: bool, num_threads: int) -> None:
    def jobs() -> Iterator[Callable[[], int]]:
        for number in numbers:
            yield partial(outcome, number)
        if broken:
            raise Broken("raised by the iterator of jobs")

    with WorkerPool(num_threads) as pool:
        assert drained(pool, jobs()) == drained(WorkerPool(), jobs())


@every_size
def test_jobs_run_only_a_little_ahead(num_threads: int) -> None:
    begun = 0

    def jobs() -> Iterator[Callable[[], int]]:
        nonlocal begun
        for number in range(100):
            begun += 1
            yield partial(outcome, number)

    with WorkerPool(num_threads) as pool:
        for handed_out, _ in enumerate(pool.in_order(jobs()), 1):
            assert begun <= handed_out + AHEAD_PER_THREAD * num_threads


def test_the_caller_is_one_of_the_threads() -> None:
    """Two jobs that wait for each other, in a pool of two threads."""
    meeting = threading.Barrier(2, timeout=WAIT_S)

    def meet() -> str:
        meeting.wait()
        return threading.current_thread().name

    with WorkerPool(2) as pool:
        assert len(set(pool.in_order([meet, meet]))) == 2


def test_results_may_be_the_jobs_of_others() -> None:
    with WorkerPool(2) as pool:
        inner = pool.in_order(partial(outcome, number) for number in range(50))
        assert list(pool.in_order(partial(outcome, number + 1) for number in inner)) == list(range(1, 51))


def test_results_that_are_closed_early_leave_no_job_behind() -> None:
    running, most = 0, 0
    lock = threading.Lock()

    def job() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most += 1
        threading.Event().wait(0.01)
        with lock:
            running -= 1

    with WorkerPool(3) as pool:
        results = pool.in_order(job for _ in range(100))
        next(results)
        results.close()
        assert running == 0
        ran = most
        assert list(pool.in_order([lambda: 1])) == [1], "the pool can be used on"
    assert most == ran < 100
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("patch")]


def test_a_pool_of_one_starts_no_thread() -> None:
    with WorkerPool() as pool:
        assert list(pool.in_order([threading.current_thread] * 3)) == [threading.current_thread()] * 3


def test_a_shelf_lends_what_was_put_there() -> None:
    shelf = Shelf(list[int])
    with shelf.borrowed() as first, shelf.borrowed() as second:
        assert first is not second
    assert any(shelf.take() is thing for thing in (first, second))
