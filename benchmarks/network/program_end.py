"""Exchange the messages of a node's program and a run's conductor, over the program's standard input and output.

    program    READY                     connected; knows what it will fetch, and holds nothing of it
    conductor  GO                        the clock starts
    program    DONE <CLOCK_MONOTONIC>    a peer holds every byte, verified; the source does not send it
    conductor  (closes stdin)            all peers are done
    program    REPORT <json>             its cost; then it exits

A program is started with one argument, its `Assignment` as JSON. All namespaces share one kernel, hence one clock.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.network.sampler import Sampler


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A program's identity and the files that it works with.

    `index` is 0 for the source; `names` and `addresses` are those of all nodes. `directory` is the program's own;
    `shared` is common to all, and contains `payload`, the file that the source sends. Behind routers, `partners` are
    the peers to connect to before GO, and `punches` says whether the node punches holes through routers.
    """

    index: int
    names: list[str]
    addresses: list[str]
    directory: Path
    shared: Path
    payload: Path
    partners: list[str] = []
    punches: bool = False

    @property
    def is_source(self) -> bool:
        return self.index == 0

    @property
    def address(self) -> str:
        return self.addresses[self.index]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A program's final report, counted from GO: bytes by neighbour ("all" if it cannot tell), and processor seconds of
    all threads.

    `file` is what it received, or sent. `met` are the partners that it had connected to before GO. `circuit_bytes` is
    what it relayed since its start so that others could connect, each byte once.
    """

    file: Path
    up: dict[str, int]
    down: dict[str, int]
    user_s: float
    system_s: float
    met: list[str] = []
    circuit_bytes: int = 0

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s


def to_json(message: Assignment | Report) -> str:
    return msgspec.json.encode(message, enc_hook=str).decode()  # paths, which msgspec does not know


def assignment_of(text: str) -> Assignment:
    return msgspec.json.decode(text, type=Assignment, dec_hook=_path)


def report_of(text: str) -> Report:
    return msgspec.json.decode(text, type=Report, dec_hook=_path)


def _path(kind: type, text: str) -> Path:
    return Path(text)


class ProgramEnd:
    """The program's end. Methods that wait block the thread."""

    def __init__(self) -> None:
        self.assignment = assignment_of(sys.argv[1])
        self._used_at_go = (0.0, 0.0)
        self._sampler = Sampler.from_environment()

    def ready(self) -> None:
        """Report READY. Call it in the main thread."""
        if self._sampler is not None:
            self._sampler.start()
        _say("READY")

    def wait_go(self) -> None:
        """Wait for GO; exit if the conductor is gone."""
        if sys.stdin.readline().strip() != "GO":
            sys.exit(1)
        if self._sampler is not None:
            self._sampler.clear()
        self._used_at_go = _used_s()

    def done(self) -> None:
        _say(f"DONE {time.monotonic():.6f}")

    def wait_end(self) -> None:
        sys.stdin.read()

    def report(
        self,
        file: Path,
        *,
        up: dict[str, int],
        down: dict[str, int],
        met: Sequence[str] = (),
        circuit_bytes: int = 0,
    ) -> None:
        """Print the final report. Call it in the main thread."""
        if self._sampler is not None:
            self._sampler.stop()
        user_s, system_s = (now - then for now, then in zip(_used_s(), self._used_at_go, strict=True))
        report = Report(
            file=file,
            up=up,
            down=down,
            user_s=user_s,
            system_s=system_s,
            met=list(met),
            circuit_bytes=circuit_bytes,
        )
        _say(f"REPORT {to_json(report)}")


def _say(text: str) -> None:
    print(text, flush=True)


def _used_s() -> tuple[float, float]:
    """Return processor seconds of this process so far, in user and in system mode."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime
