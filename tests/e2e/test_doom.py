"""kill -9 at chosen points of training, publication, checkpointing and admission: nothing lost, nothing doubled.

The learner and its peers are real. The trainer hashes instead of computing (`tests.e2e.hashing_trainer`), so that an
incarnation takes a second. The outcome is judged from the ledger, the trainer's own list of what it was trained on, and
the nodes' receipts.
"""

from __future__ import annotations

import json
import signal
from random import Random

import pytest

from tests.e2e.conftest import DOOMED_STEPS as STEPS
from tests.e2e.ledger_rules import AFTER_A_CRASH, Run, check_history, check_ledger, check_receipts
from tests.e2e.programs import Program, Swarm, free_port, stopped, wait_done, wait_event, wait_for

PHASES = {
    "training": (
        "trainer.step before",
        "trainer.step after",
        "TrainingLedger.step_trained before",
        "TrainingLedger.step_trained after",
    ),
    "publication": (
        "trainer.export half",
        "ChunkStore.adopt before",
        "ChunkStore.adopt after",
        "TrainingLedger.version_published before",
        "TrainingLedger.version_published after",
    ),
    "checkpointing": (
        "trainer.save half",
        "trainer.save after",
        "TrainingLedger.checkpointed before",
        "TrainingLedger.checkpointed after",
        "TrainingLedger.checkpoints_removed before",
        "TrainingLedger.checkpoints_removed after",
    ),
    "admission": (
        "WorkLedger.deliveries_judged before",
        "WorkLedger.deliveries_judged after",
        "WorkLedger.leases_issued before",
        "WorkLedger.leases_issued after",
    ),
}

STARTING = (
    "trainer.restore after",
    "TrainingLedger.begin_incarnation before",
    "TrainingLedger.begin_incarnation after",
)

CHEAP = (
    "TrainingLedger.step_trained after 4 learner",
    "trainer.export half 2 trainer",
    "trainer.save half 3 learner",
    "WorkLedger.deliveries_judged after 5 learner",
    "ChunkStore.adopt before 3 learner",
)
"""One point of each phase, and one of the trainer alone."""


def drawn(seed: int) -> list[str]:
    """Return five random points: one of each phase, and one that a start must survive."""
    rng = Random(seed)
    points = [f"{rng.choice(calls)} {rng.randint(1, 6)}" for calls in PHASES.values()]
    rng.shuffle(points)
    points.append(f"{rng.choice(STARTING)} 1")
    return [f"{point} {rng.choice(['learner', 'trainer'])}" for point in points]


def strike(swarm: Swarm, learner: Program, point: str, nodes: list[Program]) -> Program:
    """Let the kill happen, and return the learner that is there afterwards."""
    before, joined = incarnation(swarm), [len(node.events("joined")) for node in nodes]
    path = swarm.machine.root / "doom"
    path.write_text(point, encoding="ascii")
    kills_learner = not point.startswith("trainer.") or point.endswith("learner")
    if starting := point.startswith(
        ("trainer.restore", "TrainingLedger.begin_incarnation")
    ):  # a call that is made only at a start
        learner.kill()
        learner = swarm.learn_doomed(is_invited=False)
    wait_for(point, lambda: not path.exists() or None, *nodes)
    if kills_learner:
        assert learner.wait() == -signal.SIGKILL, learner.story()
        joined = [len(node.events("joined")) for node in nodes]
        learner = swarm.learn_doomed()
    elif starting:
        swarm.wait_invite(learner)
    if kills_learner or starting:
        # Otherwise the run may end before a node is back, and the node would look for the learner for ever.
        with stopped(learner.child("hashing_trainer")):
            for node, number in zip(nodes, joined, strict=True):
                wait_event(node, "joined", learner, after=number)
    wait_for("the next incarnation", lambda: incarnation(swarm) > before, learner, *nodes)
    return learner


def incarnation(swarm: Swarm) -> int:
    ((number,),) = swarm.rows("SELECT coalesce(max(incarnation), 0) FROM incarnations")
    return int(number)


def live_through(swarm: Swarm, points: list[str]) -> None:
    learner = swarm.learn_doomed()
    nodes = swarm.join_all(learner, ["one"], ["two", "--no-listen"])
    wait_for("a checkpoint", lambda: bool(swarm.rows("SELECT 1 FROM checkpoints")), learner, *nodes)
    for point in points:
        learner = strike(swarm, learner, point, nodes)
    wait_done(learner, *nodes)
    run = Run(steps=STEPS, incarnations=incarnation(swarm), verdicts=AFTER_A_CRASH)
    assert len(points) < run.incarnations <= 1 + 2 * len(points)
    check_ledger(swarm, run)
    ((directory,),) = swarm.rows("SELECT directory FROM checkpoints ORDER BY step DESC LIMIT 1")
    state = json.loads((swarm.state / "checkpoints" / directory / "trainer.json").read_text())
    check_history(swarm, run, state["history"])
    for node in nodes:
        check_receipts(swarm, node)


@pytest.mark.slow
def test_five_kills(doomed: Swarm) -> None:
    live_through(doomed, list(CHEAP))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_fifty_kills(doomed: Swarm, seed: int) -> None:
    live_through(doomed, drawn(seed))


def test_a_node_that_is_killed_and_started_again_makes_the_very_same_leases(doomed: Swarm) -> None:
    """It does so also when the learner was killed meanwhile: both have lost everything but the state on their disks."""
    slow = doomed.directory / "slow.toml"
    slow.write_text('[network]\nlisten = ["/ip4/127.0.0.1/tcp/0"]\n[engine]\nkind = "fake"\nfake_token_s = 60.0\n')
    doomed.configure(steps=4, port=free_port(), heartbeat_s=5.0)
    learner = doomed.learn_doomed()
    node = doomed.join("one", "--config", slow)
    wait_event(node, "joined", learner)
    begun = "SELECT 1 FROM leases WHERE started_version IS NOT NULL"
    wait_for("leases in hand", lambda: bool(doomed.rows(begun)), learner, node)
    node.kill()
    learner.kill()
    held = doomed.rows("SELECT lease, peer, prompt FROM leases WHERE status = 'open'")
    learner = doomed.learn_doomed()
    again = doomed.join("one")
    wait_done(learner, again)
    assert sum(event["leases"] for event in learner.events("leases_granted_again")) == len(held) > 0
    assert set(held) <= set(doomed.rows("SELECT lease, peer, prompt FROM leases WHERE status = 'delivered'"))
    check_ledger(doomed, Run(steps=4, incarnations=2, verdicts=AFTER_A_CRASH))
    check_receipts(doomed, again)
