"""Claim "hub": a learner with two thousand members uses its processor for training, and a restart does not stall it.

Bars, medians of the repetitions, the pause included:

- hub_2000_core_pct, at most 50: the share of a core that the learner's process uses with 2000 idle members and no
  training.
- hub_join_cpu_ms, at most 15: the learner's processor time for one join, when the learner was killed and started again
  and all 2000 return at once during training. It is the processor time from when the learner listens until all have
  joined, minus what it uses in the same time at the rate of the 20 s afterwards.
- hub_pause_s, at most 2: the longest time between two training steps while they join, beyond the usual one.

The learner is the program that operators run, except that its trainer sleeps (`benchmarks/live/trainer.py`). Members
(`benchmarks/live/members.py`) run in other processes: real TLS, yamux, greetings and heartbeats at the default period,
each from its own address. Three nodes with engines that sleep keep training going. All of them share this machine's
cores with the learner; only the learner's process is counted.
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
"""Timeout until all have joined. At first they are unknown, and admitted no faster than 50 a second."""

QUIET_S = 15.0
"""Wait before anything is counted: introductions and searches for addresses end within it."""

SPAN_S = 20.0
USUAL_STEPS = 8
POLL_S = 0.25

PLANT = Plant(train_s=1.0, prompts=4, group=4, generation_s=0.3, size_bytes=1 << 16, heartbeat_s=5.0)


@dataclass(kw_only=True)
class Tail:
    """Events in a growing file; reads each line once."""

    path: Path
    times: dict[str, list[float]] = field(default_factory=dict)
    _read: int = 0

    def count(self, event: str) -> int:
        return len(self.seconds(event))

    def seconds(self, event: str) -> list[float]:
        """Return when each event of this name was written, in seconds since 1970."""
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
    """One restart: what a join cost, the longest pause beyond the usual, and the time until all were back."""

    join_ms: float
    pause_s: float
    back_s: float


class Hub:
    """One learner with all its members; it is killed and started again."""

    def __init__(self, out: Path, members: int) -> None:
        self.swarm = LoopbackSwarm(name="hub", out=out, plant=PLANT, kappa=3)
        self.out, self.members = out, members
        state = self.swarm.state
        self.events, self.recording = Tail(path=state / EVENTS_FILE), Tail(path=state / FILE)

    def run(self, reps: int) -> tuple[list[float], list[Return], float]:
        """Return the shares of a core in percent, the results of the restarts, and the MiB that the process held."""
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
        """Wait until all are back, and then for the steps and the span that show the usual pace."""
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
        """Wait for as many steps as are needed to know the usual pace."""
        steps = self.recording.count("stepped")
        self._wait("training", lambda: self.recording.count("stepped") > steps + USUAL_STEPS)

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        ends = time.monotonic() + JOINING_S
        while not condition():
            if time.monotonic() > ends:
                raise BenchmarkError(f"Timed out after {JOINING_S:.0f} s waiting for {what}: see logs in {self.out}.")
            time.sleep(POLL_S)

    @contextmanager
    def _members(self, number_: int) -> Iterator[None]:
        each = self.members // PROCESSES
        argv = [sys.executable, "-m", "benchmarks.live.members", self.swarm.invite, str(number_ * each), str(each)]
        with open_program(f"members{number_}", argv, self.out):
            yield


def _used(process: psutil.Process) -> float:
    """Return the processor seconds that it has used so far, without its children."""
    times = process.cpu_times()
    return float(times.user + times.system)


def benchmark() -> int:
    """Measure, print the table and the verdict."""
    parser = arguments(__doc__ or "", reps=REPS)
    parser.add_argument("--members", type=int, default=MEMBERS, help="fewer for a short run; a multiple of 4")
    options = parser.parse_args()
    with scratch(options.keep) as out:
        shares, returns, rss_mib = Hub(out, options.members).run(options.reps)
    rows = [[number(one.join_ms), number(one.pause_s), number(one.back_s)] for one in returns]
    say(table(["processor ms a join", "pause s", "all back after s"], rows))
    bars = [
        Bar(name=f"hub_{options.members}_core_pct", value=median(shares), at_most=CORE_PCT_AT_MOST),
        Bar(name="hub_join_cpu_ms", value=median([one.join_ms for one in returns]), at_most=JOIN_MS_AT_MOST),
        Bar(name="hub_pause_s", value=median([one.pause_s for one in returns]), at_most=PAUSE_AT_MOST_S),
    ]
    figures = {"members": options.members, "rss_mib": rss_mib, "back_s": median([one.back_s for one in returns])}
    return conclude("hub", bars, figures)


if __name__ == "__main__":
    main(benchmark)
