"""Measure what an idle node sends and receives, in a swarm in which all nodes are neighbours.

    python -m benchmarks.live.idle      one measurement, a line for each node

The swarm is `volery learn` and as many `volery join` as a full mesh has (FULL_MESH), each behind a router of kind
`port`. So a node has FULL_MESH connections, one of them to the learner. One version is published and fetched, and
rollouts are generated until the staleness window is full. Then all wait for a trainer that sleeps; the engines sleep as
well. All traffic of nodes in that time is counted where their router would count it: heartbeats, questions,
keep-alives, reservations, searches for a router's ports, with all headers.

Invariants:

- Every router is probed before the first node starts.
- Nothing is counted before nodes had SETTLE_S for their work after joining.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.live.swarm import (
    LEARNER,
    Plant,
    Program,
    Run,
    count_events,
    node_toml,
    open_program,
    swarm_toml,
    wait_until,
)
from benchmarks.network.emulation import Node
from benchmarks.network.home import Home
from benchmarks.network.homes import Laboratory, open_homes
from benchmarks.network.namespaces import inside, ip, run
from benchmarks.network.payload import write_payload
from benchmarks.network.router_probe import check
from benchmarks.network.routers import KINDS
from node.learner_role.command import EVENTS_FILE
from node.network.invites import found_swarm
from node.tasks.tokenizer import write_character_tokenizer
from swarm.work.neighbour_graph import FULL_MESH

PLANT = Plant(train_s=3600.0, prompts=4, size_bytes=1 << 20, learner_mbit=50.0, node_down_mbit=50.0, heartbeat_s=5.0)
"""A training step that does not end, and the default heartbeat period."""

MEETING_S = 90.0
"""Timeout for all to connect, on two cores: each of 276 pairs shakes hands twice."""

SETTLE_S = 45.0
"""Pause from the last connection to the count: questions to neighbours become rare within it."""

SPAN_S = 75.0
"""Seconds that are counted: every regular message of a node is sent at least once."""

LOOK_S = 1.0
FEWEST_MET_PCT = 95.0
"""Smallest percentage of the connections of a full mesh. With fewer, nodes exchange less."""

ESTABLISHED = "01"
"""The state in /proc/net/tcp."""


@dataclass(frozen=True, kw_only=True)
class Idle:
    """By node: bytes a second, both ways together; and its number of connections."""

    bytes_per_s: dict[str, float]
    num_connections: dict[str, int]

    @property
    def most_bytes_per_s(self) -> float:
        return max(self.bytes_per_s.values())

    @property
    def typical_bytes_per_s(self) -> float:
        return median(self.bytes_per_s.values())

    @property
    def met_pct(self) -> float:
        """Percentage of the connections of a full mesh with the learner that existed."""
        return 100 * sum(self.num_connections.values()) / len(self.num_connections) ** 2


def measure_idle(out: Path) -> Idle:
    """Run the swarm and measure it; `out`, a new directory, receives all files.

    Raises BenchmarkError, NetworkUnavailable, or ProbeFailed.
    """
    names = [f"n{number}" for number in range(1, FULL_MESH + 1)]
    homes = [
        Home(name=name, kind=KINDS["port"], up=PLANT.node_up_mbit, down=PLANT.node_down_mbit, delay_ms=5)
        for name in names
    ]
    out.mkdir(parents=True)
    write_character_tokenizer(out / "model")
    (out / "model" / "config.json").write_text("{}", encoding="ascii")
    write_payload(out / "model", 1 << 16, seed=0)
    learner = Node(name=LEARNER, up=PLANT.learner_mbit, down=PLANT.learner_mbit, delay_ms=5)
    with open_homes(homes, [learner]) as lab, ExitStack() as stack:
        check(lab)
        _start(lab, names, stack, out)
        ends = time.monotonic() + MEETING_S
        while not all(_connections(lab, name) >= FULL_MESH for name in names) and time.monotonic() < ends:
            time.sleep(LOOK_S)
        time.sleep(SETTLE_S)
        before, began = [_counted(lab, name) for name in names], time.monotonic()
        time.sleep(SPAN_S)
        after, span_s = [_counted(lab, name) for name in names], time.monotonic() - began
        return Idle(
            bytes_per_s={name: (now - then) / span_s for name, then, now in zip(names, before, after, strict=True)},
            num_connections={name: _connections(lab, name) for name in names},
        )


def _start(lab: Laboratory, names: Sequence[str], stack: ExitStack, out: Path) -> None:
    """Start the learner and the nodes, and wait until all have joined and hold the first version."""
    config, state, begin = out / "swarm.toml", out / "state", out / "begin"
    asked = Run(staleness=3, nodes=len(names), steps=2, first=1)
    config.write_text(swarm_toml(PLANT, asked, lab.address(LEARNER)), encoding="utf-8")
    invite = found_swarm(config)
    trainer = [str(PLANT.train_s), str(PLANT.size_bytes), str(begin)]
    argv = [sys.executable, "-m", "benchmarks.live.learner", str(config), *trainer]
    started: list[Program] = [stack.enter_context(open_program(LEARNER, lab.inside(LEARNER, argv), out))]
    for name in names:
        path = out / f"{name}.toml"
        path.write_text(node_toml(PLANT, name, "0.0.0.0"), encoding="utf-8")
        options = ["--config", str(path), "--state", str(out / name), "--plain"]
        argv = [sys.executable, "-m", "node", "join", invite, *options]
        started.append(stack.enter_context(open_program(name, lab.inside(name, argv), out)))
    wait_until("all nodes", lambda: count_events(state / EVENTS_FILE, "peer_joined") >= len(names), started)
    begin.touch()
    installed = "version_installed"
    wait_until(
        "a version everywhere",
        lambda: all(count_events(out / name / EVENTS_FILE, installed) for name in names),
        started,
    )


def _counted(lab: Laboratory, name: str) -> int:
    """Return the bytes that a node's interface has sent and received."""
    told = json.loads(ip("-n", lab.namespace(name), "-s", "-j", "link", "show", "eth0"))
    return sum(int(told[0]["stats64"][way]["bytes"]) for way in ("rx", "tx"))


def _connections(lab: Laboratory, name: str) -> int:
    """Return the number of a node's open TCP connections, the one to the learner included."""
    lines = run(*inside(lab.namespace(name), ["cat", "/proc/net/tcp"])).splitlines()[1:]
    return sum(line.split()[3] == ESTABLISHED for line in lines)


def main() -> None:
    """Measure once, and print it."""
    with tempfile.TemporaryDirectory(prefix="volery-idle-") as directory:
        idle = measure_idle(Path(directory) / "run")
    for name, rate in idle.bytes_per_s.items():
        print(f"{name}: {rate:.0f} bytes/s, {idle.num_connections[name]} connections")
    print(f"at most {idle.most_bytes_per_s:.0f} bytes/s; {idle.met_pct:.1f} % of all pairs have met")


if __name__ == "__main__":
    main()
