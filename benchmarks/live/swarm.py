"""Run a learner and its rollout nodes once, from nothing to the learner's last training step.

    learner     `volery learn`, except for a trainer that sleeps (`trainer`)
    nodes       `volery join` with the fake engine, which sleeps as well: no token uses a core
    links       each process in a network namespace of its own (`benchmarks.network.emulation`)

Invariants:

- Training begins when all nodes have joined.
- When `run_swarm` returns or raises, none of its processes and namespaces is left.
- The learner's state directory is left, and records what happened.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import ROOT, BenchmarkError, machine_seconds
from benchmarks.network.emulation import Node, open_network
from benchmarks.network.payload import write_payload
from benchmarks.network.requirements import NetworkUnavailable
from learner.provisioning.estimation.recording import FILE
from node.commands.demo.node_process import GRACE_S
from node.learner_role.command import EVENTS_FILE
from node.network.invites import found_swarm
from node.runtime.shutdown import STOP_ON_EOF
from node.tasks.tokenizer import write_character_tokenizer

PORT = 4001
LEARNER = "learner"

POLL_S = 0.5
START_S = 120.0
"""Timeout until all have joined: many interpreters and their imports, on two busy cores."""

TIMEOUT_FACTOR = 6.0
"""A run has failed if it takes longer than this factor times the training alone, plus START_S."""

SWARM_TOML = """\
[swarm]
name = "bench"
state = "state"

[network]
listen = ["/ip4/{address}/tcp/{port}"]
heartbeat_s = {heartbeat_s}

[model]
directory = "model"
weights_dtype = "bfloat16"

[task]
spec = "reverse:letters=6"
held_out = 0

[learn]
steps = {steps}
staleness = {staleness}
publish_every = {kappa}
prompts_per_step = {prompts}
group_size = {group}
max_new_tokens = {tokens}
lease_timeout_s = 120.0
seed = {seed}

[trust]
audits = false
"""

NODE_TOML = """\
name = "{name}"

[network]
listen = ["/ip4/{address}/tcp/{port}"]

[engine]
kind = "fake"
batch_rollouts = {group}

[testing]
fake_token_s = {token_s}
"""


@dataclass(frozen=True, kw_only=True)
class Plant:
    """The constants of every run: durations, sizes, and rates of links in Mbit/s.

    A node generates a group of `group` completions at a time, of at most `tokens` tokens, in `generation_s`.
    """

    train_s: float = 2.45
    prompts: int = 15
    group: int = 8
    tokens: int = 16
    generation_s: float = 0.45
    size_bytes: int = 2 << 20
    learner_mbit: float = 22.0
    node_up_mbit: float = 50.0
    node_down_mbit: float = 100.0
    heartbeat_s: float = 2.0

    @property
    def rollouts(self) -> int:
        """R."""
        return self.prompts * self.group


@dataclass(frozen=True, kw_only=True)
class Run:
    """The variables of a run: window, period, numbers of nodes and of training steps; `first` is the first counted."""

    staleness: int
    kappa: int = 1
    nodes: int
    steps: int
    first: int
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A run that ended well. `state` is the learner's directory; `cores` is the share of all cores in use, by any
    process, from the first counted step on.
    """

    state: Path
    cores: float


def run_swarm(plant: Plant, run: Run, out: Path) -> Ran:
    """Run the swarm; `out`, a new directory, receives all files. Raises BenchmarkError."""
    names = [f"n{number}" for number in range(1, run.nodes + 1)]
    nodes = [Node(name=name, up=plant.node_up_mbit, down=plant.node_down_mbit) for name in names]
    links = [Node(name=LEARNER, up=plant.learner_mbit, down=plant.learner_mbit), *nodes]
    state, begin = out / "state", out / "begin"
    out.mkdir(parents=True)
    write_character_tokenizer(out / "model")
    (out / "model" / "config.json").write_text("{}", encoding="ascii")
    write_payload(out / "model", 1 << 16, seed=0)
    config = out / "swarm.toml"
    try:
        with open_network(links) as network, ExitStack() as stack:
            config.write_text(swarm_toml(plant, run, network.address(LEARNER)), encoding="utf-8")
            invite = found_swarm(config)
            trainer = [str(plant.train_s), str(plant.size_bytes), str(begin)]
            argv = [sys.executable, "-m", "benchmarks.live.learner", str(config), *trainer]
            learner = stack.enter_context(open_program(LEARNER, network.inside(LEARNER, argv), out))
            started = [learner]
            for name in names:
                argv = _join(plant, name, network.address(name), invite, out)
                started.append(stack.enter_context(open_program(name, network.inside(name, argv), out)))
            wait_until("all nodes", lambda: count_events(state / EVENTS_FILE, "peer_joined") >= run.nodes, started)
            begin.touch()
            return Ran(state=state, cores=_watch(learner, started, plant, run, state))
    except NetworkUnavailable as error:
        raise BenchmarkError(str(error)) from error


def _watch(learner: Program, started: Sequence[Program], plant: Plant, run: Run, state: Path) -> float:
    """Wait until the learner has ended; return the share of the cores in use since the first counted step."""
    ends = time.monotonic() + TIMEOUT_FACTOR * run.steps * plant.train_s + START_S
    began: tuple[float, float] | None = None
    cores = 0.0
    while (code := learner.process.poll()) is None:
        if time.monotonic() > ends:
            raise BenchmarkError(f"The run takes too long. {learner.last_words()}")
        if began is None and count_events(state / FILE, "stepped") >= run.first:
            began = machine_seconds(), time.monotonic()
        elif began is not None:
            seconds = time.monotonic() - began[1]
            cores = (machine_seconds() - began[0]) / max(seconds, POLL_S) / (os.cpu_count() or 1)
        time.sleep(POLL_S)
    failed = [one for one in started[1:] if one.process.poll()]
    if code or failed:
        raise BenchmarkError((learner if code else failed[0]).last_words())
    return cores


def swarm_toml(plant: Plant, run: Run, address: str) -> str:
    """Return the learner's configuration."""
    return SWARM_TOML.format(
        address=address,
        port=PORT,
        steps=run.steps,
        staleness=run.staleness,
        kappa=run.kappa,
        prompts=plant.prompts,
        group=plant.group,
        tokens=plant.tokens,
        seed=run.seed,
        heartbeat_s=plant.heartbeat_s,
    )


def node_toml(plant: Plant, name: str, address: str) -> str:
    """Return a node's configuration."""
    token_s = plant.generation_s / plant.tokens
    return fake_node_toml(name, group=plant.group, token_s=token_s, address=address, port=PORT)


def fake_node_toml(name: str, *, group: int, token_s: float, address: str = "127.0.0.1", port: int = 0) -> str:
    """Return the configuration of a node with the fake engine, which takes `token_s` for a token."""
    return NODE_TOML.format(name=name, address=address, port=port, token_s=token_s, group=group)


def _join(plant: Plant, name: str, address: str, invite: str, out: Path) -> list[str]:
    config = out / f"{name}.toml"
    config.write_text(node_toml(plant, name, address), encoding="utf-8")
    options = ["--config", str(config), "--state", str(out / name), "--plain"]
    return [sys.executable, "-m", "node", "join", invite, *options]


class Program:
    """One program with the log of its output."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name, self.process, self._log = name, process, log

    def last_words(self) -> str:
        """Return the end of its output."""
        tail = self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:]
        return "\n".join([f"The end of the output of {self.name}:", *(tail or ["(nothing)"])])


@contextmanager
def open_program(name: str, argv: Sequence[str], out: Path) -> Iterator[Program]:
    """Yield a program that is terminated, then killed, when the block is left. Its stdin ends if this process dies."""
    log = out / f"{name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", STOP_ON_EOF: "1"},
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        yield Program(name, process, log)
    finally:
        process.terminate()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdin.close()


def wait_until(what: str, condition: Callable[[], bool], started: Sequence[Program]) -> None:
    ends = time.monotonic() + START_S
    while not condition():
        if ended := next((one for one in started if one.process.poll() is not None), None):
            raise BenchmarkError(f"{ended.name} ended while we waited for {what}. {ended.last_words()}")
        if time.monotonic() > ends:
            words = started[0].last_words() if started else ""
            raise BenchmarkError(f"Timed out after {START_S:.0f} s waiting for {what}. {words}")
        time.sleep(POLL_S)


def count_events(path: Path, event: str) -> int:
    """Return how often this event occurs in a file of events, one a line."""
    if not path.exists():
        return 0
    lines = path.read_bytes().splitlines(keepends=True)
    return sum(json.loads(line).get("event") == event for line in lines if line.endswith(b"\n"))
