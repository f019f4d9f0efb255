"""kill -9 and SIGSTOP in the middle of a run: nothing of the run is lost afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

import psutil
import pytest

from tests.e2e.ledger_rules import AFTER_A_CRASH, Run, check_ledger, check_receipts, peer_of, reasons
from tests.e2e.programs import (
    DEADLINE_S,
    Program,
    Swarm,
    free_port,
    stopped,
    wait_done,
    wait_event,
    wait_for,
    wait_gone,
)
from tests.support.paths import ROOT

STEPS = 60
"""Some seconds of training, so that there is a middle for the kill."""


def hold_leases(swarm: Swarm, learner: Program) -> tuple[Program, psutil.Process]:
    """Return a node with leases in hand that it cannot work on, and its stopped engine.

    The leases came after the engine (the second) was stopped. Leases from before may have been worked on already. There
    must be enough steps that new leases come.
    """
    trainer = learner.child("learner.training.server")
    with stopped(trainer):
        node = swarm.join("unlucky", engine="transformers")
        engine = node.child("transformers_worker")
        wait_event(node, "child_started", learner)
        wait_event(node, "joined", learner)
    wait_event(learner, "version_published")
    with stopped(trainer):  # no step makes room, and the node finishes all its work
        wait_for("the end of its work", lambda: _has_delivered_all(swarm, node), learner, node)
        engine.suspend()
        since_ms = int(time.time() * 1000)
    wait_for("leases in hand", lambda: leases_of(swarm, node, "open", since_ms=since_ms), learner, node)
    return node, engine


def _has_delivered_all(swarm: Swarm, node: Program) -> bool:
    return bool(leases_of(swarm, node, "delivered")) and not leases_of(swarm, node, "open")


def leases_of(swarm: Swarm, node: Program, status: str, *, since_ms: int = 0) -> set[bytes]:
    sql = "SELECT lease FROM leases JOIN peers USING (peer) WHERE name = ? AND status = ? AND issued_ms > ?"
    return {lease for (lease,) in swarm.rows(sql, node.name, status, since_ms)}


@pytest.mark.rest
def test_a_node_is_killed(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS)
    learner = swarm.learn()
    node, engine = hold_leases(swarm, learner)
    node.kill()
    wait_for("the loss of its leases", lambda: not leases_of(swarm, node, "open"), learner)
    assert leases_of(swarm, node, "lost")
    survivor = swarm.join("survivor")
    wait_done(learner, survivor)
    check_ledger(swarm, Run(steps=STEPS))
    check_receipts(swarm, survivor)
    check_receipts(swarm, node, cut_off=True)
    engine.resume()
    wait_gone([engine])  # it ended only because its stdin ended


@pytest.mark.slow
def test_a_node_falls_silent_and_wakes_up(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS)
    learner = swarm.learn()
    node, engine = hold_leases(swarm, learner)
    with stopped(psutil.Process(node.pid)):
        wait_event(learner, "peer_left", node)
        wait_for("the loss of its leases", lambda: not leases_of(swarm, node, "open"), learner)
        lost = leases_of(swarm, node, "lost")
        assert lost
        wait_for("the reason", lambda: "no heartbeat" in reasons(swarm, peer_of(swarm, node))[0], learner)
        survivor = swarm.join("survivor")
        swarm.wait_steps(3, learner, survivor)
        trainer = learner.child("learner.training.server")
        trainer.suspend()
    wait_event(learner, "peer_joined", node, after=1, name=node.name)
    engine.resume()
    wait_for("its late work", lambda: any(e["refused"] for e in node.events("receipt")), learner, node)
    trainer.resume()
    wait_done(learner, survivor, node)
    assert lost <= leases_of(swarm, node, "lost")  # late deliveries did not count
    check_ledger(swarm, Run(steps=STEPS, verdicts=frozenset({"admitted", "unknown_lease"})))
    check_receipts(swarm, survivor)


@pytest.mark.rest
def test_the_learner_is_killed(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS, port=free_port(), heartbeat_s=5.0)  # slow, so that leases outlive the learner
    learner = swarm.learn()
    nodes = swarm.join_all(learner, ["one"], ["two", "--no-listen"])
    swarm.wait_steps(5, learner, *nodes)
    learner = kill_and_restart(swarm, learner, *nodes)
    wait_done(learner, *nodes)
    check_ledger(swarm, Run(steps=STEPS, incarnations=2, verdicts=AFTER_A_CRASH))
    for node in nodes:
        check_receipts(swarm, node)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_learner_is_killed_again_and_again(swarm: Swarm, seed: int) -> None:
    moments = sorted(Random(seed).sample(range(1, STEPS - 10), 4))
    swarm.configure(steps=STEPS, port=free_port(), held_out=8)
    learner = swarm.learn()
    nodes = swarm.join_all(learner, ["one"], ["two", "--no-listen"])
    for moment in moments:
        swarm.wait_steps(moment, learner, *nodes)
        learner = kill_and_restart(swarm, learner, *nodes)
    wait_done(learner, *nodes)
    check_ledger(swarm, Run(steps=STEPS, incarnations=len(moments) + 1, verdicts=AFTER_A_CRASH))
    for node in nodes:
        check_receipts(swarm, node)


def kill_and_restart(swarm: Swarm, learner: Program, *nodes: Program) -> Program:
    """kill -9 the learner alone; its children end by themselves. The next learner begins with the durable state, and
    the nodes come back to it by themselves.
    """
    before = [len(node.events("joined")) for node in nodes]
    children = learner.family()[1:]
    learner.kill()
    wait_gone(children)
    assert swarm.steps_taken < STEPS  # otherwise nothing was interrupted
    ((incarnation,),) = swarm.rows("SELECT max(incarnation) FROM incarnations")
    ((durable,),) = swarm.rows("SELECT coalesce(max(step), 0) FROM checkpoints")
    waiting = swarm.rows(
        "SELECT lease, idx FROM records WHERE rule = 'admitted' AND (step IS NULL OR step > ?1)"
        " AND lease NOT IN (SELECT lease FROM dropped WHERE step <= ?1)",
        durable,
    )
    again = swarm.learn()
    with stopped(
        again.child("learner.training.server")
    ):  # otherwise one node could end the run before the other is back
        for node, joined in zip(nodes, before, strict=True):
            wait_event(node, "joined", again, after=joined)
    wait_event(again, "incarnation_began", incarnation=incarnation + 1, step=durable)
    recovered = wait_event(again, "buffer_recovered", after=incarnation)
    assert recovered["rollouts"] == len(waiting)
    return again


@pytest.mark.rest
def test_the_trainer_is_killed(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS)
    learner = swarm.learn()
    node = swarm.join("node")
    swarm.wait_steps(5, learner, node)
    learner.child("learner.training.server").kill()
    wait_done(learner, node)
    assert learner.events("child_died")
    assert learner.events("trainer_restarted")
    check_ledger(swarm, Run(steps=STEPS, incarnations=2, verdicts=AFTER_A_CRASH))
    check_receipts(swarm, node)
    assert "the trainer process was killed by SIGKILL" in learner.out.read_text()  # the operator was told


def ranks_of(learner: Program) -> list[psutil.Process]:
    """Return the trainer's processes, by their ranks."""
    learner.child("learner.training.server")
    found = [each for each in learner.family()[1:] if "learner.training.server" in each.cmdline()]
    return sorted(found, key=lambda each: int(each.environ()["RANK"]))


def wait_needed(swarm: Swarm, *programs: Program) -> None:
    """Wait until there is a batch to be trained on. If one rank of the trainer stands still, the trainer is then in the
    middle of that step, or just before it.
    """
    free = "SELECT count(*) FROM records WHERE rule = 'admitted' AND step IS NULL"
    wait_for("a batch", lambda: swarm.rows(free)[0][0] >= Run(steps=STEPS).batch, *programs)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_one_rank_of_two_is_killed_in_the_middle_of_its_work(swarm: Swarm, victim: int) -> None:
    swarm.configure(steps=STEPS, ranks=2)
    learner = swarm.learn()
    node = swarm.join("node")
    swarm.wait_steps(5, learner, node)
    ranks = ranks_of(learner)
    assert len(ranks) == 2
    ranks[victim].suspend()
    wait_needed(swarm, learner, node)
    ranks[victim].kill()
    wait_gone(ranks)  # the other one waits for it no longer
    wait_done(learner, node)
    assert learner.events("trainer_restarted")
    check_ledger(swarm, Run(steps=STEPS, incarnations=2, verdicts=AFTER_A_CRASH))
    check_receipts(swarm, node)
    assert f"the trainer process ended with exit code 1: rank {victim} was killed by SIGKILL" in learner.out.read_text()


@contextmanager
def second_machine(meeting: str) -> Iterator[subprocess.Popen[bytes]]:
    """The launcher of machine 1, as an operator starts it there; here both machines are this one."""
    command = [sys.executable, "-m", "learner.training.distributed.launcher", "1", "2", "1", meeting]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True) as launcher:
        try:
            yield launcher
        finally:
            launcher.kill()


@pytest.mark.slow
def test_a_second_machine_comes_late_goes_and_comes_back(swarm: Swarm) -> None:
    meeting = f"127.0.0.1:{free_port()}"
    swarm.configure(steps=STEPS, trainer=f'machines = 2\nrendezvous = "{meeting}"')
    learner = swarm.learn(is_invited=False)
    waits = wait_event(learner, "trainer_waits")
    assert waits["text"].endswith(
        f"for machine 1 of 2. Run there: python -m learner.training.distributed.launcher 1 2 1 {meeting}"
    )
    with second_machine(meeting) as launcher:
        swarm.wait_invite(learner)  # the trial before it takes both machines
        node = swarm.join("node")
        swarm.wait_steps(5, learner, node)
        [rank] = psutil.Process(launcher.pid).children()
        rank.kill()
        died = wait_event(learner, "child_died", node)
        assert launcher.wait(DEADLINE_S) == 1
    cause = "machine 1 (127.0.0.1): rank 1 was killed by SIGKILL"
    assert died["reason"].startswith(f"ended with exit code 1: {cause}")
    wait_event(learner, "trainer_waits", node, after=1)
    with second_machine(meeting) as launcher:
        wait_done(learner, node)
        # the launcher ended well, or because the learner's machine took longer to end than children may
        launcher.wait(DEADLINE_S)
    check_ledger(swarm, Run(steps=STEPS, incarnations=2, verdicts=AFTER_A_CRASH))
    assert learner.out.read_text().count(cause) == 1, "the operator must be told once"


@pytest.mark.slow
def test_the_learner_of_two_ranks_is_killed_in_the_middle_of_its_work(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS, ranks=2, port=free_port(), heartbeat_s=5.0)
    learner = swarm.learn()
    node = swarm.join("node")
    swarm.wait_steps(5, learner, node)
    ranks_of(learner)[1].suspend()
    wait_needed(swarm, learner, node)
    learner = kill_and_restart(swarm, learner, node)
    wait_done(learner, node)
    check_ledger(swarm, Run(steps=STEPS, incarnations=2, verdicts=AFTER_A_CRASH))
    check_receipts(swarm, node)


@pytest.mark.slow
def test_the_engine_is_killed(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS)
    learner = swarm.learn()
    node, engine = hold_leases(swarm, learner)
    engine.kill()
    wait_done(learner, node)
    assert node.events("child_died")
    assert len(node.events("child_started")) == 2
    check_ledger(swarm, Run(steps=STEPS))
    check_receipts(swarm, node)
    assert "the engine process was killed by SIGKILL" in node.out.read_text()
    assert not any((node.state / "tmp").glob("*/*")), "temporary files were left"
