"""A learner is restored from an older copy: the run goes on above every published version, or it says what to do."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from tests.e2e.ledger_rules import (
    Run,
    check_chain,
    check_history,
    check_leases,
    check_nothing_lost,
    check_tallies,
    check_trained,
)
from tests.e2e.programs import Program, Swarm, free_port, stopped, wait_done, wait_event, wait_for, wait_gone

STEPS = 90
COPIED_AT, LOST_AT = 10, 25


@pytest.fixture
def long_lived(doomed: Swarm) -> Swarm:
    """A swarm with enough steps that a copy can be restored in their middle."""
    doomed.configure(steps=STEPS, port=free_port(), heartbeat_s=1.0)
    return doomed


def stop(learner: Program) -> None:
    family = learner.family()[1:]
    learner.process.send_signal(signal.SIGINT)
    learner.wait()
    wait_gone(family)


def learn_until(swarm: Swarm, step: int, *nodes: Program) -> Program:
    """Start the learner, and stop it when it has taken so many steps and one of them is durable."""
    learner = swarm.learn_doomed()
    swarm.wait_steps(step, learner, *nodes)
    durable = "SELECT 1 FROM checkpoints WHERE step >= ?"
    wait_for(f"step {step} on disk", lambda: swarm.rows(durable, step), learner, *nodes)
    stop(learner)
    return learner


def three_incarnations_later(swarm: Swarm) -> tuple[Path, list[Program]]:
    """Return a copy of a learner's state, and the nodes of a swarm that went on without it for three incarnations."""
    learner = swarm.learn_doomed()
    nodes = swarm.join_all(learner, ["one"], ["two", "--no-listen"])
    swarm.wait_steps(COPIED_AT, learner, *nodes)
    stop(learner)
    copy = swarm.directory / "copy"
    shutil.copytree(swarm.state, copy)
    for step in (COPIED_AT + 5, COPIED_AT + 10, LOST_AT):
        learn_until(swarm, step, *nodes)
    return copy, nodes


def newest_held(nodes: list[Program]) -> list[int]:
    """Return [incarnation, version] of the newest version that a node has installed."""
    installed = [event["version"] for node in nodes for event in node.events("version_installed")]
    return max([int(part) for part in version.split(".")] for version in installed)


@pytest.mark.slow
def test_a_state_that_is_ten_versions_and_three_incarnations_old_goes_on(long_lived: Swarm) -> None:
    swarm = long_lived
    copy, nodes = three_incarnations_later(swarm)
    held = newest_held(nodes)
    assert held[0] == 4, "the newest version must be of incarnation 4; the copy knows one incarnation"
    assert held[1] >= COPIED_AT + 10, "ten versions more: step 25 was trained on what version 21, or a newer one, made"
    shutil.rmtree(swarm.state)
    shutil.copytree(copy, swarm.state)
    before = [len(node.events("joined")) for node in nodes]
    learner = swarm.learn_doomed()
    with stopped(learner.child("hashing_trainer")):  # otherwise the run may end before a node is back
        for node, joined in zip(nodes, before, strict=True):
            wait_event(node, "joined", learner, after=joined)
        told = wait_event(learner, "ledger_restored", *nodes)
        said = json.loads(swarm.machine.call("status", swarm.config, "--json").out)
    assert said["notice"] == told["text"]
    wait_done(learner, *nodes)
    begun = [number for (number,) in swarm.rows("SELECT incarnation FROM incarnations ORDER BY 1")]
    assert begun[-1] > held[0]
    ((newest,),) = swarm.rows("SELECT max(incarnation) FROM versions WHERE version = ?", STEPS)
    assert newest == begun[-1]
    run = Run(steps=STEPS, incarnations=len(begun))
    check_trained(swarm, run)
    check_nothing_lost(swarm)
    check_chain(swarm)
    check_leases(swarm)
    check_tallies(swarm)
    ((directory,),) = swarm.rows("SELECT directory FROM checkpoints ORDER BY step DESC LIMIT 1")
    history = json.loads((swarm.state / "checkpoints" / directory / "trainer.json").read_text())["history"]
    check_history(swarm, run, history)
    blamed = "SELECT rule, detail FROM records WHERE rule NOT IN ('admitted', 'unknown_lease', 'orphaned', 'stale')"
    assert swarm.rows(blamed) == [], "a peer was blamed for work that the copy does not know"


@pytest.mark.slow
def test_a_ledger_alone_that_is_older_than_its_checkpoints_is_refused_with_what_to_do(long_lived: Swarm) -> None:
    swarm = long_lived
    copy, _ = three_incarnations_later(swarm)
    shutil.copyfile(copy / "ledger.sqlite", swarm.ledger_file)
    for name in ("ledger.sqlite-wal", "ledger.sqlite-shm"):
        (swarm.state / name).unlink(missing_ok=True)
    kept = sorted(path.name for path in (swarm.state / "checkpoints").iterdir())
    learner = swarm.learn_doomed(is_invited=False)
    assert learner.wait() == 1, learner.story()
    said = learner.err.read_text()
    assert "is older than the checkpoints beside it" in said
    assert "Restore ledger.sqlite and checkpoints from one copy" in said
    assert sorted(path.name for path in (swarm.state / "checkpoints").iterdir()) == kept, "nothing was removed"
