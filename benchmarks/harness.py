"""Run and measure benchmark programs, and print their machine, tables, bars and last line.

A benchmark is a program of its own, `benchmarks/<claim>.py`, that `make bench-<claim>` runs.

Invariants:

- Every process that it started is ended, also after Ctrl-C or a failure.
- Nothing is written outside its scratch directory.
- The last line that it prints is one JSON object, `{"claim", "date", "machine", "bars": [{"name", "value", "at_most" |
  "at_least", "met", "why"}], "figures"}`, where `why` says why a value is null.
- It exits with 0 if every bar was met, 1 if one was missed or could not be measured, 130 after Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import psutil

from node.commands.demo.node_process import GRACE_S, family_pss_bytes
from node.reports.summary import installed_software
from node.runtime.shutdown import STOP_ON_EOF

SAMPLE_S = 1.0
"""Seconds between memory measurements, as in the demo. Reading smaps takes milliseconds of a core that is timed."""

ROOT = Path(__file__).resolve().parent.parent


class BenchmarkError(Exception):
    """A run failed, so there is no figure. The message says which run, and where its log is."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar. `value` None: it could not be measured, which counts as missed, and `why` says why."""

    name: str
    value: float | None
    at_most: float | None = None
    at_least: float | None = None
    why: str = ""

    @property
    def met(self) -> bool:
        low = float("-inf") if self.at_least is None else self.at_least
        high = float("inf") if self.at_most is None else self.at_most
        return self.value is not None and low <= self.value <= high

    def as_json(self) -> dict[str, Any]:
        bounds = {"at_most": self.at_most, "at_least": self.at_least}
        given = {key: bound for key, bound in bounds.items() if bound is not None}
        why = {"why": self.why} if self.value is None and self.why else {}
        return {"name": self.name, "value": _rounded(self.value), **given, "met": self.met, **why}


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A program that ended well: its start (`time.time()`), its seconds, and the highest PSS of its process family.

    `cores` is how many processor cores it and its descendants used on average. `others_cores` is how many other
    processes used, other guests of the same host included; if that is much, the figure is not reliable.
    """

    began: float
    seconds: float
    peak_pss_bytes: int
    cores: float
    others_cores: float


def arguments(description: str, *, reps: int) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--reps", type=_positive, default=reps, help=f"repetitions, each with a seed (default {reps})")
    parser.add_argument("--seed", type=int, default=0, help="seed of the first repetition (default 0)")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="store all files that it writes in this new directory")
    return parser


def main(claim: Callable[[], int]) -> NoReturn:
    """Run a benchmark and exit. Ctrl-C, SIGTERM and failed runs leave through its scopes and print one sentence."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Some callers start their children with SIGINT ignored; Python then installs no handler of its own.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = claim()
    except BenchmarkError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("benchmark: stopped", file=sys.stderr)
        code = 130
    sys.exit(code)


@contextmanager
def scratch(keep: Path | None) -> Iterator[Path]:
    """Yield a directory for all written files: a temporary one, or `keep`, which must be new or empty."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="volery-bench-") as directory:
            yield Path(directory)
        return
    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise BenchmarkError(f"{keep} exists; name a new directory with --keep.")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.resolve()


def run(argv: Sequence[str], *, log: Path, caches: Path, measure_memory: bool) -> Ran:
    """Run a Python program to its end, with output to `log`. An interrupt ends it.

    `caches` receives the files that libraries would write into the home directory. The program's stdin ends if this
    process dies. Raises BenchmarkError if the program fails.
    """
    began, clock, peak, before = time.time(), time.monotonic(), 0, _processor_seconds()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, *argv],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, **_private_caches(caches), STOP_ON_EOF: "1"},
            start_new_session=True,
        )
        try:
            while (code := _wait(process, SAMPLE_S)) is None:
                if measure_memory:
                    peak = max(peak, family_pss_bytes(process.pid))
        finally:
            _end(process)
    if code != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
        raise BenchmarkError(f"{' '.join(argv)} ended with code {code}. The end of its output:\n{tail}")
    seconds = time.monotonic() - clock
    ours, everybody = (now - then for now, then in zip(_processor_seconds(), before, strict=True))
    return Ran(
        began=began,
        seconds=seconds,
        peak_pss_bytes=peak,
        cores=ours / seconds,
        others_cores=max(0.0, everybody - ours) / seconds,
    )


@contextmanager
def started_end(program: str, end: str, options: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """Start one end of `program`, by its `--end` option, as a process that does not outlive the scope."""
    argv = [sys.executable, program, "--end", end, *options]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str]) -> Any:
    """Return the next line of an end, which is JSON."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise BenchmarkError("one of the two processes ended too early; its output is above.")
    return json.loads(line)


def introduce(end: subprocess.Popen[str], to: subprocess.Popen[str]) -> None:
    """Pass the addresses that `to` prints on to `end`."""
    assert end.stdin is not None
    end.stdin.write(json.dumps(heard(to)) + "\n")
    end.stdin.flush()


def median(values: Sequence[float | None]) -> float | None:
    """Return the median; None stands for never, which is more than any number."""
    middle = statistics.median(float("inf") if value is None else value for value in values)
    return None if middle == float("inf") else middle


def crossing(points: Sequence[tuple[float, float]], target: float) -> float | None:
    """Return when a curve of (seconds, value) first reaches `target`, on straight lines between its points."""
    if points[0][1] >= target:
        return points[0][0]
    for (before_s, before), (after_s, after) in pairwise(points):
        if after >= target:
            return before_s + (after_s - before_s) * (target - before) / (after - before)
    return None


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the JSON lines of a record of runs, except one that a kill cut off; an empty list without a file."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def add_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append a line of JSON to a record of runs; it is on disk when this returns. It begins a new line if the last line
    was cut off."""
    cut_off = path.exists() and path.read_bytes()[-1:] not in (b"\n", b"")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if cut_off else "") + json.dumps(row, separators=(",", ":")) + "\n")
        file.flush()
        os.fsync(file.fileno())


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return the cells in columns, as Markdown that fits into docs/explain/benchmarks.md."""
    cells = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in cells]
    padded.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(row)} |" for row in padded)


def number(value: float | None, digits: int = 2) -> str:
    """Return a figure for a table; a dash if it was never reached."""
    return "-" if value is None else f"{value:.{digits}f}"


def say(text: str) -> None:
    """Print a line immediately, also into a pipe."""
    print(text, flush=True)


def conclude(claim: str, bars: Sequence[Bar], figures: Mapping[str, Any]) -> int:
    """Print machine, bars and the JSON line; return the exit code."""
    where = machine()
    say(f"\n{where['cpu']}, {where['cores']} cores, {where['memory_gib']} GiB, {where['system']}, {where['software']}")
    for bar in bars:
        say(f"{bar.name}: {number(bar.value)} ({_promise(bar)}): {_verdict(bar)}")
    line = {
        "claim": claim,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": where,
        "bars": [bar.as_json() for bar in bars],
        "figures": {name: _rounded(value) for name, value in figures.items()},
    }
    say(json.dumps(line))
    return 0 if all(bar.met for bar in bars) else 1


def machine_seconds() -> float:
    """Return the processor time of all processes on this machine so far, all cores and other guests of the host."""
    total = psutil.cpu_times()
    # `guest` is part of `user`; other guests used the stolen time.
    names = ("user", "nice", "system", "irq", "softirq", "steal")
    return float(sum(getattr(total, name, 0.0) for name in names))


def machine() -> dict[str, Any]:
    """Return the facts that the figures depend on, apart from our own code."""
    return {
        "cpu": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "software": " ".join(f"{name} {version}" for name, version in installed_software().items()),
    }


def _verdict(bar: Bar) -> str:
    if bar.value is None and bar.why:
        return f"not measured: {bar.why}"
    return "met" if bar.met else "MISSED"


def _promise(bar: Bar) -> str:
    parts = [("at most", bar.at_most), ("at least", bar.at_least)]
    return ", ".join(f"{word} {bound:g}" for word, bound in parts if bound is not None)


def _rounded(value: Any) -> Any:
    return round(value, 4) if isinstance(value, float) else value


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _processor_seconds() -> tuple[float, float]:
    """Return processor time so far: of our ended children that were waited for, and of the whole machine."""
    ours = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ours.ru_utime + ours.ru_stime, machine_seconds()


def _private_caches(directory: Path) -> dict[str, str]:
    """Return where Hugging Face's libraries and matplotlib keep their caches, with their network access disabled."""
    return {
        "HF_HOME": str(directory / "huggingface"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "MPLCONFIGDIR": str(directory / "matplotlib"),
    }


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate it, then kill it. Its stdin stays open meanwhile: after a second signal a node would not wait for its
    children."""
    if process.poll() is None:
        process.terminate()
        _wait(process, 2 * GRACE_S)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdin is not None:
        process.stdin.close()


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value
