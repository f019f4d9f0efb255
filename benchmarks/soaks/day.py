"""Run a learner and its nodes for a day in one process, over a network in memory, RATE times as fast as real time.

    learner    `volery learn`, except for a trainer that sleeps (`benchmarks.live.trainer`); restarted every hour
    nodes      `volery join` with the fake engine; each stays for a while, and then another one takes its place

Invariants:

- Everything but the trainer, the engines and the network is the program that people run, with its ledger, its store and
  its files.
- The clock for dates runs as fast as the one for durations.
- The directory of a node that left is removed.
"""

from __future__ import annotations

import random
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from unittest import mock

import trio
import trio.testing

from benchmarks.live.swarm import fake_node_toml
from benchmarks.network.payload import write_payload
from benchmarks.soaks.usage import Usage, usage
from node.config.invite_text import open_invite
from node.config.loader import read_node_config
from node.learner_role.app import run_learner
from node.learner_role.preflight import look_at
from node.network.invites import found_swarm
from node.rollout_role.app import run_rollout
from node.runtime.events import Clock, EventLog
from node.state.owner_orders import OwnerSignals
from node.tasks.tokenizer import write_character_tokenizer
from protocol.core.identity import Keypair
from protocol.core.invite import Invite
from swarm.testing.memory_transport import MemoryNetwork
from swarm.transport.interface import Transport
from swarm.versions import follower

HOUR_S = 3600.0
RATE = 120.0
"""Virtual seconds in a real one: a day takes twelve minutes, and a commit of the ledger ten virtual seconds."""

NODES = 4
PRESENCE_S = 4800.0
"""Mean stay of a node: 72 leave in a day."""

TRAIN_S = 240.0
SIZE_BYTES = 1 << 17
"""Size of a version. It is small, so that versions in the nodes' memory, which is bounded, do not hide other growth."""

LOOK_S = 1800.0

SWARM_TOML = """\
[swarm]
name = "soak"
state = "state"
keep_days = {keep_days}

[network]
listen = ["/ip4/127.0.0.1/tcp/1"]
heartbeat_s = 60.0

[model]
directory = "model"
weights_dtype = "bfloat16"

[task]
spec = "reverse:letters=6"
held_out = 0

[learn]
steps = 1000000
staleness = 3
prompts_per_step = 8
group_size = 8
max_new_tokens = 16
lease_timeout_s = 1200.0

[trust]
audits = false
"""


@dataclass(kw_only=True)
class Day:
    """A day of a swarm. `out`, a directory, receives all files."""

    out: Path
    hours: float
    keep_days: float = 0.25
    tell: Callable[[Usage], None] = lambda usage: None
    num_restarts: int = 0
    num_joins: int = 0
    num_versions: int = 0
    num_admitted: int = 0
    troubles: list[str] = field(default_factory=list)
    _network: MemoryNetwork = field(default_factory=MemoryNetwork)
    _invite: Invite | None = None
    _numbers: count[int] = field(default_factory=count)
    _rng: random.Random = field(default_factory=lambda: random.Random(0))

    def live(self) -> Sequence[Usage]:
        """Let the day pass; return the usage at every LOOK_S."""
        write_character_tokenizer(self.out / "model")
        (self.out / "model" / "config.json").write_text("{}", encoding="ascii")
        write_payload(self.out / "model", 1 << 16, seed=0)
        config = self.out / "swarm.toml"
        config.write_text(SWARM_TOML.format(keep_days=self.keep_days), encoding="utf-8")
        clock = trio.testing.MockClock(rate=RATE)
        starts_ms = Clock.now_ms() - round(clock.current_time() * 1000)

        def now_ms() -> int:
            return starts_ms + round(clock.current_time() * 1000)

        found_swarm(config)
        with mock.patch.object(Clock, "now_ms", now_ms), mock.patch.object(follower, "_now_ms", now_ms):
            return trio.run(self._live, config, clock=clock)

    async def _live(self, config: Path) -> Sequence[Usage]:
        looks: list[Usage] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._learn, config)
            for slot in range(NODES):
                nursery.start_soon(self._join, slot)
            began = trio.current_time()
            for number in range(1, round(self.hours * HOUR_S / LOOK_S) + 1):
                await trio.sleep_until(began + number * LOOK_S)
                looks.append(usage((trio.current_time() - began) / HOUR_S, self.out))
                self.tell(looks[-1])
            nursery.cancel_scope.cancel()
        return looks

    async def _learn(self, config: Path) -> None:
        """Run the learner, and restart it every hour."""
        begin = self.out / "begin"
        begin.touch()
        trainer = [sys.executable, "-m", "benchmarks.live.trainer", str(TRAIN_S / RATE), str(SIZE_BYTES), str(begin)]
        while True:
            start = look_at(config, resume=False, fork_from="")
            events = EventLog(Path(start.config.swarm.state) / "events.jsonl")
            events.listen(self._hear)
            with trio.move_on_after(HOUR_S):
                await run_learner(
                    start.config,
                    start.suite,
                    events,
                    lambda invite, services: self._ready(invite),
                    trainer=trainer,
                    trial=False,
                    transport=partial(self._present, "learner"),
                )
            events.close()
            self.num_restarts += 1

    def _ready(self, invite: str) -> None:
        self._invite = open_invite(invite, now_ms=Clock.now_ms())

    def _hear(self, event: str, fields: object) -> None:
        match event, fields:
            case "version_published", _:
                self.num_versions += 1
            case "delivery_judged", {"admitted": int(admitted)}:
                self.num_admitted += admitted
            case "trouble", {"text": text}:
                self.troubles.append(str(text))

    async def _join(self, slot: int) -> None:
        """Run one node after the other."""
        await trio.sleep(slot * PRESENCE_S / NODES)
        while True:
            if self._invite is None:
                await trio.sleep(1.0)
                continue
            name = f"n{next(self._numbers)}"
            path, state = self.out / f"{name}.toml", self.out / name
            path.write_text(fake_node_toml(name, group=8, token_s=0.5, port=1), encoding="utf-8")
            events = EventLog()
            with trio.move_on_after(self._rng.uniform(0.5, 1.5) * PRESENCE_S):
                outcome = await run_rollout(
                    self._invite,
                    read_node_config(path),
                    events,
                    state=state,
                    wait_s=HOUR_S,
                    on_ready=lambda home, role: None,
                    signals=OwnerSignals(),
                    transport=partial(self._present, name),
                )
                self.troubles.append(f"{name} ended: {outcome.reason}")
            events.close()
            self.num_joins += 1
            shutil.rmtree(state)
            path.unlink()

    @asynccontextmanager
    async def _present(self, name: str, seed: bytes, network: object, events: object) -> AsyncIterator[Transport]:
        async with self._network.node(name, peer_id=Keypair(seed).peer_id) as transport:
            yield transport
