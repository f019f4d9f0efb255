"""A hundred kills and freezes in one run, judged by a ledger that the program does not keep.

Learner, trainer and nodes are killed, or stopped and continued, at moments drawn with a seed, also while they start.
The nodes' own hooks write a shadow ledger outside the program's state (`tests.e2e.shadowed`), and the trainer keeps its
own list of what it was trained on. At the end both are compared with the learner's ledger:

- No acknowledged record is lost, doubled or trained on twice.
- Nothing is trained on that no node made.
- Every sum and Merkle root is right.

VOLERY_TEST_STRIKES and VOLERY_TEST_SEED ask for another number, or for other moments.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

import psutil
import pytest

from tests.e2e.ledger_rules import AFTER_A_CRASH, Run, check_history, check_ledger, check_receipts, peer_of
from tests.e2e.programs import Program, Swarm, free_port, stopped, wait_done, wait_event, wait_for
from tests.e2e.shadowed import VARIABLE, Shadow

STRIKES = int(os.environ.get("VOLERY_TEST_STRIKES", "100"))
SEED = int(os.environ.get("VOLERY_TEST_SEED", "1"))
NAMES = ("one", "two", "three")
KILLS = ("kill learner",) * 3 + ("kill trainer",) * 2 + ("kill node",) * 3
VICTIMS = (*KILLS, "stop learner", "stop trainer", "stop node")
FOREVER, LAST_STEPS = 1_000_000, 20
LONGEST_STOP_S = 3.0
"""Some freezes are longer than four heartbeats of half a second, after which a node counts as gone."""


@dataclass
class Siege:
    """A swarm under strikes. A program that ends without a strike is a defect, and fails the test."""

    swarm: Swarm
    rng: Random
    learner: Program
    nodes: dict[str, Program]
    invite: str

    def strike(self, what: str) -> None:
        how, victim = what.split()
        if victim == "node":
            name = self.rng.choice(NAMES)
            if how == "stop":
                self.freeze(psutil.Process(self.nodes[name].pid))
            else:
                self.nodes[name].kill()
                self.nodes[name] = self.join(name)
        elif victim == "learner":
            if how == "stop":
                self.freeze(psutil.Process(self.learner.pid))
            else:
                self.learner.kill()
                self.learner = self.swarm.learn_doomed(is_invited=False)
        elif trainer := self.trainer():
            with suppress(psutil.NoSuchProcess):
                self.freeze(trainer) if how == "stop" else trainer.kill()

    def trainer(self) -> psutil.Process | None:
        """Return the trainer's process, or None while the learner starts and has none yet."""
        with suppress(psutil.NoSuchProcess):
            return next((p for p in psutil.Process(self.learner.pid).children() if _hashes(p)), None)
        return None

    def freeze(self, process: psutil.Process) -> None:
        """Stop the process for the length of a fault. Nothing waits on this time."""
        process.suspend()
        time.sleep(self.rng.uniform(0.05, LONGEST_STOP_S))
        process.resume()

    def join(self, name: str) -> Program:
        config = self.swarm.directory / "fake.toml"
        state = self.swarm.directory / name
        words = ("join", self.invite, "--config", config, "--name", name, "--state", state)
        return self.swarm.machine.start(name, *words, state=state, module="tests.e2e.shadowed")

    def wait_moment(self) -> None:
        """Wait until some program's log has grown by a few lines of any kind. Mostly few, so that starts are struck,
        too.
        """
        everybody = [self.learner, *self.nodes.values()]
        before = sum(_size(program) for program in everybody)
        more = self.rng.choice([200, 2_000, 20_000, 60_000])
        wait_for("progress", lambda: sum(_size(program) for program in everybody) >= before + more, *everybody)


def _hashes(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return any("hashing_trainer" in word for word in process.cmdline())
    return False


def _size(program: Program) -> int:
    """Return the bytes of its log."""
    path = (program.state or Path()) / "events.jsonl"
    return path.stat().st_size if path.exists() else 0


def begin(swarm: Swarm, rng: Random) -> Siege:
    learner = swarm.learn_doomed()
    swarm.to_join("nobody")  # writes the configuration that nodes use
    siege = Siege(swarm=swarm, rng=rng, learner=learner, nodes={}, invite=swarm.invite)
    siege.nodes = {name: siege.join(name) for name in NAMES}
    for node in siege.nodes.values():
        wait_event(node, "joined", learner)
    return siege


def conclude(siege: Siege) -> int:
    """Let the run end some steps from here; return how many steps there are then."""
    swarm, nodes = siege.swarm, siege.nodes
    joined = {name: len(node.events("joined")) for name, node in nodes.items()}
    siege.learner.kill()
    steps = swarm.steps_taken + LAST_STEPS
    swarm.config.write_text(swarm.config.read_text().replace(f"steps = {FOREVER}", f"steps = {steps}"))
    siege.learner = swarm.learn_doomed()
    with stopped(siege.learner.child("hashing_trainer")):
        for name, node in nodes.items():
            wait_event(node, "joined", siege.learner, after=joined[name])
    wait_done(siege.learner, *nodes.values())
    return steps


def check_shadow(swarm: Swarm, shadow: Shadow, history: list[list[str]]) -> None:
    """Compare the shadow ledger and the trainer's list with the learner's ledger."""
    assert shadow.contradictions == [], "a record has two verdicts or two contents"
    ledger = {
        (lease.hex(), index): (record.hex(), rule, step)
        for lease, index, record, rule, step in swarm.rows("SELECT lease, idx, record, rule, step FROM records")
        if rule == "admitted"
    }
    dropped = {lease.hex() for (lease,) in swarm.rows("SELECT lease FROM dropped")}
    kept = {
        (lease.hex(), index)
        for lease, index in swarm.rows("SELECT lease, idx FROM records WHERE step IS NULL AND envelope IS NOT NULL")
    }
    trained = Counter(digest for batch in history for digest in batch)
    assert max(trained.values()) == 1, "a record was trained on twice"
    admitted = {name: said for name, said in shadow.acknowledged.items() if said["rule"] == "admitted"}
    assert admitted
    for name, said in admitted.items():
        assert name in ledger, f"{name} was acknowledged, and is lost"
        record, _, step = ledger[name]
        assert record == said["record"]
        called = shadow.delivered[record, *name]
        if step is None:
            assert trained[called] == 0, "a record was trained on that the ledger lists as free"
            assert name in kept or name[0] in dropped, f"{name} was acknowledged, but is neither kept nor dropped"
        else:
            assert called in history[step - 1], f"{name} was not trained on in step {step}, as the ledger says"
    assert trained.keys() <= set(shadow.delivered.values()), "a record was trained on that no node made"
    sent = {(lease, index) for _, lease, index in shadow.delivered}
    assert ledger.keys() <= sent, "a record was admitted that no node sent"


@pytest.mark.slow
def test_a_hundred_kills_and_freezes_lose_double_and_invent_nothing(
    doomed: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm, rng = doomed, Random(SEED)
    path = swarm.machine.root / "shadow.jsonl"
    monkeypatch.setenv(VARIABLE, str(path))
    swarm.configure(steps=FOREVER, port=free_port(), heartbeat_s=0.5)
    siege = begin(swarm, rng)
    struck: Counter[str] = Counter()
    for _ in range(STRIKES):
        siege.wait_moment()
        what = rng.choice(VICTIMS)
        siege.strike(what)
        struck[what] += 1
    steps = conclude(siege)
    ((incarnations,),) = swarm.rows("SELECT max(incarnation) FROM incarnations")
    run = Run(steps=steps, incarnations=incarnations, verdicts=AFTER_A_CRASH)
    ((directory,),) = swarm.rows("SELECT directory FROM checkpoints ORDER BY step DESC LIMIT 1")
    history = json.loads((swarm.state / "checkpoints" / directory / "trainer.json").read_text())["history"]
    shadow = Shadow.read(path)
    check_shadow(swarm, shadow, history)
    check_ledger(swarm, run)
    check_history(swarm, run, history)
    for node in siege.nodes.values():
        check_receipts(swarm, node, cut_off=True)
    blamed = swarm.rows("SELECT peer FROM presence WHERE reason = 'banned'")
    assert blamed == [], [peer_of(swarm, node) for node in siege.nodes.values()]
    late = sum(said["rule"] == "unknown_lease" for said in shadow.acknowledged.values())
    told = len(shadow.acknowledged)
    print(f"{dict(struck)}; {steps} steps, {incarnations} incarnations, {told} records acknowledged, {late} too late")
