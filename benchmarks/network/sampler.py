"""Sample where a node's program spends processor time, from the inside.

Every INTERVAL_S of processor time the kernel interrupts the program, and the time that the main thread has used since
the last interrupt is charged to its current function. Jobs on worker threads (`trio.to_thread.run_sync`) are few and
large, so they are profiled call by call instead. A sample is taken when the interpreter next checks for interrupts, at
a call, a return from C or the end of a loop's pass. So time in C belongs to the function that called it, and some of a
function's own time to the one that it calls next.

A program samples itself, from GO to REPORT, if SAMPLES in its environment names a file.

Invariant: all shares add up to the processor time of all threads, user and system; waiting does not count.
"""

from __future__ import annotations

import cProfile
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import trio

SAMPLES = "VOLERY_BENCH_SAMPLES"
INTERVAL_S = 0.002
"""A thousand samples in two seconds; each costs about 0.02 ms."""

JOBS = "jobs (worker threads)"
HANDOFF = "waiting for jobs, taking them, handing results back (worker threads)"


class Sampler:
    """Created and used in the main thread; `clear` may be called from another."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._stacks: Counter[tuple[str, ...]] = Counter()  # outermost first, to nanoseconds
        self._jobs: dict[int, cProfile.Profile] = {}
        self._main_clock = time.pthread_getcpuclockid(threading.get_ident())
        self._main_used = self._process_used = 0

    @classmethod
    def from_environment(cls) -> Sampler | None:
        output = os.environ.get(SAMPLES)
        return None if output is None else cls(Path(output))

    def start(self) -> None:
        self.clear()
        self._profile_jobs()
        signal.signal(signal.SIGPROF, self._sample)
        signal.setitimer(signal.ITIMER_PROF, INTERVAL_S, INTERVAL_S)

    def clear(self) -> None:
        """Discard the samples so far."""
        self._stacks.clear()
        self._jobs.clear()
        self._process_used = time.process_time_ns()
        self._main_used = time.clock_gettime_ns(self._main_clock)

    def stop(self) -> None:
        """Write the samples: a line for each stack, frames with semicolons between, then microseconds."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        elsewhere = time.process_time_ns() - self._process_used - self._stacks.total()
        jobs = self._job_times()
        self._stacks.update(jobs)
        self._stacks[HANDOFF,] = max(0, elsewhere - jobs.total())
        lines = [f"{';'.join(stack)} {used // 1000}\n" for stack, used in self._stacks.items()]
        self._output.write_text("".join(lines), encoding="utf-8")

    def _sample(self, number: int, frame: FrameType | None) -> None:
        used = time.clock_gettime_ns(self._main_clock)
        self._stacks[_stack(frame)] += used - self._main_used
        self._main_used = used

    def _profile_jobs(self) -> None:
        run_sync: Any = trio.to_thread.run_sync

        async def run_profiled(job: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
            return await run_sync(self._profiled, job, *arguments, **options)

        trio.to_thread.run_sync = run_profiled  # type: ignore[assignment]  # the same, but for generics

    def _profiled(self, job: Callable[..., Any], *arguments: Any) -> Any:
        thread = threading.get_ident()
        profile = self._jobs.setdefault(thread, cProfile.Profile(time.thread_time))
        return profile.runcall(job, *arguments)

    def _job_times(self) -> Counter[tuple[str, ...]]:
        """Return the own time of every function that jobs called."""
        times: Counter[tuple[str, ...]] = Counter()
        for profile in list(self._jobs.values()):
            for entry in profile.getstats():
                times[JOBS, _named(entry.code)] += round(entry.inlinetime * 1e9)
        return times


def _stack(frame: FrameType | None) -> tuple[str, ...]:
    stack = []
    while frame is not None:
        stack.append(_named(frame.f_code))
        frame = frame.f_back
    return tuple(reversed(stack))


def _named(code: CodeType | str) -> str:
    """Return a function as "name (file)"; a function that is not written in Python has no file."""
    return code if isinstance(code, str) else f"{code.co_qualname} ({code.co_filename})"
