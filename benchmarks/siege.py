"""Claim "siege": under attack by strangers, members soon rejoin, memory stays bounded and training continues.

Bars, medians over the repetitions:

- member_back_s, at most 30: seconds from when a restarted learner listens until all its nodes have joined. It is killed
  and started again while 300 idle connections of one stranger wait for it, each opened again as soon as it is closed.
- learner_rss_mib, at most 300: the most memory that the learner's process holds while 40 strangers open 256 streams
  each, fill every window and read nothing.
- pace_of_quiet, at least 0.5: training steps a minute during that siege, over those of the quiet time before.

A learner with a trainer that sleeps (`benchmarks/live/trainer.py`) and nodes with engines that sleep run as processes
on loopback. Strangers (`benchmarks/live/besieger.py`) run in one more process on the same cores. Quiet and besieged
times alternate.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.harness import Bar, arguments, conclude, main, median, number, say, scratch, table
from benchmarks.live.loopback import LoopbackSwarm, listens
from benchmarks.live.swarm import Plant, count_events, open_program, wait_until
from learner.provisioning.estimation.recording import FILE
from node.config.invite_text import INVITE_FILE
from node.learner_role.command import EVENTS_FILE
from node.runtime.events import Clock
from protocol.core.invite import read_invite

MEMBER_BACK_AT_MOST_S, RSS_AT_MOST_MIB, PACE_AT_LEAST = 30.0, 300.0, 0.5
REPS = 3
NODES = 3
PHASE_S = 20.0
"""Seconds of a quiet and of a besieged phase: some twenty steps."""

PLANT = Plant(train_s=0.5, prompts=4, group=4, generation_s=0.3, size_bytes=1 << 20)
MANY = 200
"""Number of the learner's connections from which the idle strangers count as connected."""

POLL_S = 0.1
MIB = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Phase:
    """What one phase showed: steps a minute, the most memory of the learner's process, its share of a core."""

    pace: float
    rss_mib: float
    cores: float


class Siege:
    """One learner, killed and started again several times, and its nodes."""

    def __init__(self, out: Path) -> None:
        self.swarm = LoopbackSwarm(name="siege", out=out, plant=PLANT)
        self.out, self.state = out, self.swarm.state
        self.swarm.begin.touch()

    def run(self, reps: int) -> tuple[list[Phase], list[Phase], list[float]]:
        """Return the quiet phases, the besieged phases, and the seconds until members were back."""
        quiet, besieged, back = list[Phase](), list[Phase](), list[float]()
        with ExitStack() as everything:
            learner = ExitStack()
            process = learner.enter_context(self.swarm.learner(0))
            everything.callback(lambda: learner.close())
            wait_until("an invite", (self.state / INVITE_FILE).exists, [])
            for number_ in range(NODES):
                everything.enter_context(self.swarm.node(f"n{number_}"))
            self._wait_joined(NODES)
            for rep in range(reps):
                quiet.append(self._watch(process))
                with self._besieger("greedy", rep):
                    besieged.append(self._watch(process))
                say(f"repetition {rep + 1}: quiet {quiet[-1]}, besieged {besieged[-1]}")
                with self._besieger("idle", rep):
                    self._wait_besieged(process)
                    process.kill()
                    process.wait()
                    learner.close()
                    joined = count_events(self.state / EVENTS_FILE, "peer_joined")
                    process = learner.enter_context(self.swarm.learner(rep + 1))
                    while not listens(process):
                        time.sleep(POLL_S)
                    began = time.monotonic()
                    self._wait_joined(joined + NODES)
                    back.append(time.monotonic() - began)
                say(f"repetition {rep + 1}: members back after {back[-1]:.1f} s")
                steps = count_events(self.state / FILE, "stepped")
                wait_until("a step", lambda: count_events(self.state / FILE, "stepped") > steps + 5, [])  # noqa: B023
        return quiet, besieged, back

    def _watch(self, process: psutil.Process) -> Phase:
        began, steps = time.monotonic(), count_events(self.state / FILE, "stepped")
        rss, cpu = 0, process.cpu_times()
        while (seconds := time.monotonic() - began) < PHASE_S:
            rss = max(rss, process.memory_info().rss)
            time.sleep(POLL_S)
        used = process.cpu_times()
        return Phase(
            pace=60 * (count_events(self.state / FILE, "stepped") - steps) / seconds,
            rss_mib=rss / MIB,
            cores=(used.user + used.system - cpu.user - cpu.system) / seconds,
        )

    def _wait_besieged(self, process: psutil.Process) -> None:
        wait_until("idle strangers", lambda: len(process.net_connections(kind="tcp")) > MANY, [])

    def _wait_joined(self, times: int) -> None:
        wait_until("all nodes", lambda: count_events(self.state / EVENTS_FILE, "peer_joined") >= times, [])

    @contextmanager
    def _besieger(self, kind: str, rep: int) -> Iterator[None]:
        address = read_invite(self.swarm.invite, now_ms=Clock.now_ms()).addresses[0]
        argv = [sys.executable, "-m", "benchmarks.live.besieger", kind, address]
        with open_program(f"{kind}{rep}", argv, self.out):
            yield


def benchmark() -> int:
    """Besiege, print the table and the verdict."""
    options = arguments(__doc__ or "", reps=REPS).parse_args()
    with scratch(options.keep) as out:
        quiet, besieged, back = Siege(out).run(options.reps)
    rows: list[Sequence[object]] = [
        [name, *(number(median([getattr(one, key) for one in phases])) for key in ("pace", "rss_mib", "cores"))]
        for name, phases in (("quiet", quiet), ("besieged", besieged))
    ]
    say(table(["", "steps a minute", "learner RSS MiB", "learner cores"], rows))
    pace_of_quiet = median([there.pace / here.pace for here, there in zip(quiet, besieged, strict=True)])
    rss = median([one.rss_mib for one in besieged])
    bars = [
        Bar(name="member_back_s", value=median(back), at_most=MEMBER_BACK_AT_MOST_S),
        Bar(name="learner_rss_mib", value=rss, at_most=RSS_AT_MOST_MIB),
        Bar(name="pace_of_quiet", value=pace_of_quiet, at_least=PACE_AT_LEAST),
    ]
    return conclude("siege", bars, {"quiet_rss_mib": median([one.rss_mib for one in quiet])})


if __name__ == "__main__":
    main(benchmark)
