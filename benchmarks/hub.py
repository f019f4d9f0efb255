"""Claim "hub": a learner with two thousand members spends its processor on training, and a restart stalls nothing.

hub_2000_core_pct, at most 50: the share of a core that the learner's process takes while 2000 members are there that
have nothing to do, and nobody trains.
hub_join_cpu_ms, at most 15: what one join costs it, when the learner was killed and started again and all 2000 come
back at once, training going on: its processor's time from when it listens until all are there, less what it takes in as
long a time at the rate of 20 s afterwards.
hub_pause_s, at most 2: the longest time between two training steps while they come, beyond the usual one.

The learner is the program that operators run, but for a trainer that sleeps (`benchmarks/live/trainer.py`). Members
(`benchmarks/live/members.py`) live in other processes: real TLS, yamux, greetings and heartbeats at the default period,
each from an address of its own. Three nodes with engines that sleep keep training going. All of them share this
machine's cores with the learner; what is counted is the learner's process alone. Figures are medians of the
repetitions, of the pause as well.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

from benchmarks.harness import Bar, BenchmarkError, arguments, conclude, main, median, number, say, scratch, table
from benchmarks.live.loopback import LoopbackSwarm, listens
from benchmarks.live.swarm import Plant, open_program
from learner.provisioning.estimation.recording import FILE
from node.learner_role.command import EVENTS_FILE

CORE_PCT_AT_MOST, JOIN_MS_AT_MOST, PAUSE_AT_MOST_S = 50.0, 15.0, 2.0
REPS = 3
MEMBERS, PROCESSES = 2000, 4
NODES = 3

JOINING_S = 240.0
"""For all to join: at first they are unknown, and let in no faster than 50 a second."""

QUIET_S = 15.0
"""Before anything is counted: introductions and searches for addresses are over by then."""

SPAN_S = 20.0
USUAL_STEPS = 8
POLL_S = 0.25

PLANT = Plant(train_s=1.0, prompts=4, group=4, generation_s=0.3, size_bytes=1 << 16, heartbeat_s=5.0)


@dataclass(kw_only=True)
class Tail:
    """Events in a file that grows, of which every line is read once."""

    path: Path
    times: dict[str, list[float]] = field(default_factory=dict)
    _read: int = 0

    def count(self, event: str) -> int:
        return len(self.seconds(event))

    def seconds(self, event: str) -> list[float]:
        """When each of these was written, in seconds since 1970."""
        if self.path.exists():
            with self.path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read += len(whole)
            for line in whole.splitlines():
                row = json.loads(line)
                self.times.setdefault(row["event"], []).append(row["at"] if "at" in row else row["at_s"])
        return self.times.get(event, [])


@dataclass(frozen=True, kw_only=True)
class Return:
    """One restart: what a join cost, the longest pause beyond the usual, and until when all were back."""

    join_ms: float
    pause_s: float
    back_s: float


class Hub:
    """One learner, killed and started again, with all its members."""

    def __init__(self, out: Path, members: int) -> None:
        self.swarm = LoopbackSwarm(name="hub", out=out, plant=PLANT, kappa=3)
        self.out, self.members = out, members
        state = self.swarm.state
        self.events, self.recording = Tail(path=state / EVENTS_FILE), Tail(path=state / FILE)

    def run(self, reps: int) -> tuple[list[float], list[Return], float]:
        """Return the shares of a core in percent, what restarts showed, and the MiB that the process held."""
        with ExitStack() as everything:
            learner = ExitStack()
            everything.callback(lambda: learner.close())
            process = learner.enter_context(self.swarm.learner(0))
            for first in range(PROCESSES):
                everything.enter_context(self._members(first))
            self._wait("all members", lambda: self.events.count("peer_joined") >= self.members)
            time.sleep(QUIET_S)
            shares = [self._share(process, SPAN_S) for _ in range(reps)]
            rss_mib = process.memory_info().rss / (1 << 20)
            say(f"idle: {', '.join(f'{share:.1f} %' for share in shares)} of a core, {rss_mib:.0f} MiB")
            if left := self.events.count("peer_left"):
                say(f"{left} members left meanwhile")
            self.swarm.begin.touch()
            for number_ in range(NODES):
                everything.enter_context(self.swarm.node(f"n{number_}", f"127.78.0.{1 + number_}"))
            returns = []
            for rep in range(reps):
                self._wait_steps()
                process.kill()
                process.wait()
                learner.close()
                process = learner.enter_context(self.swarm.learner(rep + 1))
                returns.append(self._watch_return(process))
                say(f"restart {rep + 1}: {returns[-1]}")
            return shares, returns, rss_mib

    def _watch_return(self, process: psutil.Process) -> Return:
        """Wait until all are back, and then as long again."""
        before, everybody = self.events.count("peer_joined"), self.members + NODES
        while not listens(process):
            time.sleep(POLL_S / 10)
        began, used = time.time(), _used(process)
        self._wait("all members again", lambda: self.events.count("peer_joined") >= before + everybody)
        joined, joined_used = time.time(), _used(process)
        self._wait_steps()
        share = self._share(process, SPAN_S) / 100
        stepped = [at for at in self.recording.seconds("stepped") if at >= began]
        gaps = [(later - at, at) for at, later in pairwise(stepped)]
        usual = median([gap for gap, at in gaps if at > joined])
        paused = max((gap for gap, at in gaps if at <= joined), default=usual)
        cost_s = joined_used - used - share * (joined - began)
        return Return(join_ms=1000 * cost_s / everybody, pause_s=max(0.0, paused - usual), back_s=joined - began)

    def _share(self, process: psutil.Process, span_s: float) -> float:
        used, began = _used(process), time.monotonic()
        time.sleep(span_s)
        return 100 * (_used(process) - used) / (time.monotonic() - began)

    def _wait_steps(self) -> None:
        """Wait for as many steps as tell what is usual."""
        steps = self.recording.count("stepped")
        self._wait("training", lambda: self.recording.count("stepped") > steps + USUAL_STEPS)

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        ends = time.monotonic() + JOINING_S
        while not condition():
            if time.monotonic() > ends:
                raise BenchmarkError(f"After {JOINING_S:.0f} s there was not {what}: see the logs in {self.out}.")
            time.sleep(POLL_S)

    @contextmanager
    def _members(self, number_: int) -> Iterator[None]:
        each = self.members // PROCESSES
        argv = [sys.executable, "-m", "benchmarks.live.members", self.swarm.invite, str(number_ * each), str(each)]
        with open_program(f"members{number_}", argv, self.out):
            yield


def _used(process: psutil.Process) -> float:
    """Seconds of the processor that it took so far, its children not among them."""
    times = process.cpu_times()
    return float(times.user + times.system)


def benchmark() -> int:
    """Measure, print the table and the verdict."""
    parser = arguments(__doc__ or "", reps=REPS)
    parser.add_argument("--members", type=int, default=MEMBERS, help="fewer for a short look, a multiple of 4")
    options = parser.parse_args()
    with scratch(options.keep) as out:
        shares, returns, rss_mib = Hub(out, options.members).run(options.reps)
    rows = [[number(one.join_ms), number(one.pause_s), number(one.back_s)] for one in returns]
    say(table(["ms of the processor a join", "pause s", "all back after s"], rows))
    bars = [
        Bar(name=f"hub_{options.members}_core_pct", value=median(shares), at_most=CORE_PCT_AT_MOST),
        Bar(name="hub_join_cpu_ms", value=median([one.join_ms for one in returns]), at_most=JOIN_MS_AT_MOST),
        Bar(name="hub_pause_s", value=median([one.pause_s for one in returns]), at_most=PAUSE_AT_MOST_S),
    ]
    figures = {"members": options.members, "rss_mib": rss_mib, "back_s": median([one.back_s for one in returns])}
    return conclude("hub", bars, figures)


if __name__ == "__main__":
    main(benchmark)
