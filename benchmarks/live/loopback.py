"""Run a swarm on loopback, without emulated links: a learner that can be killed and started again, and nodes.

The learner is the program that operators run, except that its trainer sleeps (`benchmarks/live/trainer.py`); nodes have
engines that sleep.

Invariants:

- A restarted learner listens where the one before did, and has its state.
- Each program ends with the block that opened it.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.harness import BenchmarkError
from benchmarks.live.swarm import Plant, fake_node_toml, open_program
from benchmarks.network.payload import write_payload
from node.network.invites import found_swarm
from node.tasks.tokenizer import write_character_tokenizer

STEPS = 100_000
"""More than any benchmark waits for."""

SWARM_TOML = """\
[swarm]
name = "{name}"
state = "state"

[network]
listen = ["/ip4/127.0.0.1/tcp/{port}"]
heartbeat_s = {plant.heartbeat_s}

[model]
directory = "model"
weights_dtype = "bfloat16"

[task]
spec = "reverse:letters=6"
held_out = 0

[learn]
steps = {steps}
staleness = 3
publish_every = {kappa}
prompts_per_step = {plant.prompts}
group_size = {plant.group}
max_new_tokens = {plant.tokens}
lease_timeout_s = 60.0

[trust]
audits = false
"""


@dataclass(kw_only=True)
class LoopbackSwarm:
    """A swarm on loopback. `out`, a directory, receives all files; training begins once the file `begin` exists."""

    name: str
    out: Path
    plant: Plant
    kappa: int = 1
    invite: str = field(init=False)

    def __post_init__(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        write_character_tokenizer(self.out / "model")
        (self.out / "model" / "config.json").write_text("{}", encoding="ascii")
        write_payload(self.out / "model", 1 << 16, seed=0)
        toml = SWARM_TOML.format(name=self.name, port=port, plant=self.plant, steps=STEPS, kappa=self.kappa)
        self.config.write_text(toml, encoding="utf-8")
        self.invite = found_swarm(self.config)

    @property
    def config(self) -> Path:
        return self.out / "swarm.toml"

    @property
    def state(self) -> Path:
        return self.out / "state"

    @property
    def begin(self) -> Path:
        return self.out / "begin"

    @contextmanager
    def learner(self, number: int) -> Iterator[psutil.Process]:
        """Start the learner for the `number`th time, which names its log; yield its process."""
        trainer = [str(self.plant.train_s), str(self.plant.size_bytes), str(self.begin)]
        argv = [sys.executable, "-m", "benchmarks.live.learner", str(self.config), *trainer]
        with open_program(f"learner{number}", argv, self.out) as program:
            yield psutil.Process(program.process.pid)

    @contextmanager
    def node(self, name: str, address: str = "127.0.0.1") -> Iterator[None]:
        """Run a node that listens at `address`."""
        config, plant = self.out / f"{name}.toml", self.plant
        token_s = plant.generation_s / plant.tokens
        told = fake_node_toml(name, group=plant.group, token_s=token_s, address=address)
        config.write_text(told, encoding="utf-8")
        options = ["--config", str(config), "--state", str(self.out / name), "--plain"]
        with open_program(name, [sys.executable, "-m", "node", "join", self.invite, *options], self.out):
            yield


def listens(process: psutil.Process) -> bool:
    """Return whether a learner can be dialled. Raises BenchmarkError if it has ended."""
    if not process.is_running():
        raise BenchmarkError("The learner ended after its restart.")
    return any(one.status == psutil.CONN_LISTEN for one in process.net_connections(kind="tcp"))
