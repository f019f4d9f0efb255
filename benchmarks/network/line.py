"""What a node's program and the conductor of a run say to each other, over the program's standard input and output.

    program    READY                     connected, knows what is to be fetched, holds nothing of it
    conductor  GO                        the clock starts
    program    DONE <CLOCK_MONOTONIC>    a peer holds every byte, verified; the source does not say it
    conductor  (closes stdin)            everybody is done
    program    REPORT <json>             what it cost; then it exits

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
    """Who a program is and what it works with.

    `index` is 0 for the source; `names` and `addresses` are everybody's. `directory` is its own; `shared` is
    everybody's, and `payload`, the file that the source is to send, lies there. Behind routers, `partners` are the
    peers that are to be met before GO, and `punches` whether a way through routers is looked for.
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
    """What a program says at its end, from GO on: bytes by neighbour ("all" when it cannot tell), processor seconds
    of all threads. `file` is what it received, or sent; `met` are the partners it met before GO, and `circuit_bytes`
    what it carried for others who were to meet, each byte once, since it started.
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


class Line:
    """The program's end. Methods that wait block the thread."""

    def __init__(self) -> None:
        self.assignment = assignment_of(sys.argv[1])
        self._used_at_go = (0.0, 0.0)
        self._sampler = Sampler.from_environment()

    def ready(self) -> None:
        """Say so. To be called in the main thread."""
        if self._sampler is not None:
            self._sampler.start()
        _say("READY")

    def wait_go(self) -> None:
        """Wait for GO; leave the program when the conductor is gone instead."""
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
        """The last word. To be called in the main thread."""
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
    """Processor seconds of this process so far, in user and in system mode."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime, used.ru_stime
