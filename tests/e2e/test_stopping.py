"""Ctrl-C, wherever it strikes: nothing is left running, one line says what to do, and starting again goes on."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.ledger_rules import HONEST, Run, check_ledger, check_receipts, peer_of
from tests.e2e.programs import Machine, Program, Swarm, free_port, wait_done, wait_event, wait_for

STEPS = 60
CHILDREN_GONE_S = 5.0
"""The promise to people, from Ctrl-C to the last child."""


def interrupt(program: Program) -> None:
    """Ctrl-C; afterwards nothing is left, and a person was told what to do."""
    family = program.family()
    began = time.monotonic()
    program.interrupt()
    _, left = psutil.wait_procs(family[1:], timeout=CHILDREN_GONE_S)
    assert not left, (left, program.story())
    assert program.wait() == 130, program.story()
    assert time.monotonic() - began < 2 * CHILDREN_GONE_S
    said = program.out.read_text() + program.err.read_text()
    assert "Traceback" not in said, said
    last = said.strip().splitlines()[-1]
    assert last.startswith("Stopped. "), said
    assert "again" in last


def test_a_swarm_is_stopped_and_goes_on(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS, port=free_port(), held_out=8)
    learner = swarm.learn()
    node = swarm.join("node", engine="transformers")
    swarm.wait_steps(3, learner, node)
    interrupt(learner)
    wait_event(node, "learner_unreachable", node)
    interrupt(node)
    ((durable,),) = swarm.rows("SELECT max(step) FROM checkpoints")
    peer = peer_of(swarm, node)

    learner, node = swarm.learn(), swarm.join("node", engine="transformers")
    wait_event(learner, "incarnation_began", incarnation=2, step=durable)
    wait_done(learner, node)
    assert peer_of(swarm, node) == peer
    check_ledger(swarm, Run(steps=STEPS, incarnations=2, verdicts=HONEST | {"orphaned"}))
    # Stopped while the learner was away: what it had judged last could not be told any more.
    check_receipts(swarm, node, cut_off=True, lost_leases=True)


def test_a_node_is_stopped_while_it_looks_for_the_learner(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS)
    learner = swarm.learn()
    learner.kill()
    node = swarm.join("node", "--wait", "600")
    assert node.state is not None
    wait_for("its receipts file", (node.state / "receipts.sqlite").exists, node)
    interrupt(node)


@pytest.mark.slow
def test_a_learner_is_stopped_while_it_starts(swarm: Swarm) -> None:
    swarm.configure(steps=3, held_out=8, port=free_port())
    learner = swarm.learn()
    learner.child("learner.trainer")  # which still imports
    interrupt(learner)
    learner = swarm.learn()
    learner.child("transformers_worker")  # the trainer is there, the other engine on its way
    interrupt(learner)
    learner, node = swarm.learn(), swarm.join("node")
    wait_done(learner, node)


@pytest.mark.slow
def test_a_node_is_stopped_while_its_engine_starts(swarm: Swarm) -> None:
    swarm.configure(steps=3)
    learner = swarm.learn()
    node = swarm.join("node", engine="transformers")
    node.child("transformers_worker")
    interrupt(node)
    node = swarm.join("node", engine="transformers")
    wait_done(learner, node)


@pytest.mark.slow
def test_the_demo_is_stopped(machine: Machine, tmp_path: Path) -> None:
    demo = machine.start("demo", "demo", "--out", tmp_path / "demo", "--plain", state=tmp_path / "demo")
    demo.child("learner.trainer")
    interrupt(demo)
    demo = machine.start("demo", "demo", "--out", tmp_path / "demo", "--plain", state=tmp_path / "demo")
    wait_for("a learner of its own", (tmp_path / "demo" / "learner" / "invite").exists, demo)
    interrupt(demo)
