"""Certificates that end while a swarm works are renewed unnoticed, or the learner ends with a clear message."""

from __future__ import annotations

import signal

import pytest

from tests.e2e.ledger_rules import HONEST, check_nothing_lost, check_receipts, check_tallies
from tests.e2e.programs import Program, Swarm, free_port, wait_event, wait_for, wait_gone

LIVES = 3
LIFE_S = 18.0
"""Seconds that a certificate is valid. It is renewed after twelve: several times as long as a node takes for one
action."""

FOREVER = 100_000
"""Training steps: the test ends the run."""


def certify_for(swarm: Swarm, seconds: float) -> None:
    swarm.configure(steps=FOREVER, port=free_port(), heartbeat_s=1.0)
    text = swarm.config.read_text()
    swarm.config.write_text(text.replace("[network]", f"certificate_days = {seconds / 86_400}\n\n[network]", 1))


def end(learner: Program) -> None:
    family = learner.family()[1:]
    learner.process.send_signal(signal.SIGINT)
    learner.wait()
    wait_gone(family)


@pytest.mark.slow
def test_a_certificate_is_renewed_under_a_swarm_that_works(doomed: Swarm) -> None:
    swarm = doomed
    certify_for(swarm, LIFE_S)
    learner = swarm.learn_doomed()
    nodes = swarm.join_all(learner, ["one"], ["two", "--no-listen"])
    wait_event(learner, "certificate_renewed", *nodes, after=LIVES - 1)
    nodes.append(swarm.join("late"))  # it learns the newest version from the others
    wait_event(nodes[-1], "joined", learner, *nodes)
    wait_event(learner, "certificate_renewed", *nodes, after=LIVES)
    steps = swarm.steps_taken
    swarm.wait_steps(steps + 5, learner, *nodes)
    for program in (learner, *nodes):
        for event in ("peer_fault", "learner_unreachable", "turned_away", "certificate_ends"):
            assert program.events(event) == [], program.name
        assert program.troubles == [], program.name
    for node in nodes:
        wait_event(node, "receipt", learner)
        node.process.send_signal(signal.SIGINT)
        node.wait()
    end(learner)
    assert {rule for (rule,) in swarm.rows("SELECT DISTINCT rule FROM records")} <= HONEST
    check_nothing_lost(swarm)
    check_tallies_so_far(swarm)
    for node in nodes:
        check_receipts(swarm, node, cut_off=True)  # verified offline, each receipt by the certificate of its time


def check_tallies_so_far(swarm: Swarm) -> None:
    """Check the tallies. In a run that was stopped between a step and its version, the last step has no tally yet."""
    ((version,),) = swarm.rows("SELECT max(version) FROM tallies")
    if version == swarm.steps_taken:
        check_tallies(swarm)


@pytest.mark.slow
def test_without_the_operators_key_the_end_is_told_and_nothing_is_lost(doomed: Swarm) -> None:
    swarm = doomed
    certify_for(swarm, 4 * LIFE_S)
    learner = swarm.learn_doomed()
    key = swarm.state / "operator.key"
    key.rename(swarm.directory / "operator.key")
    node = swarm.join("one")
    wait_event(node, "joined", learner)
    told = wait_event(learner, "certificate_ends", node)
    assert "Put operator.key into" in told["text"]
    family = learner.family()[1:]
    assert learner.wait() == 1, learner.story()
    wait_gone(family)
    said = learner.err.read_text()
    assert said.startswith("volery: error: "), said
    assert "no node trusts this learner any more. Put operator.key into" in said
    (swarm.directory / "operator.key").rename(key)
    ((durable,),) = swarm.rows("SELECT max(step) FROM checkpoints")
    again = swarm.learn_doomed()
    wait_event(again, "incarnation_began", node, incarnation=2, step=durable)
    swarm.wait_steps(durable + 5, again, node)
    wait_for("a receipt of the second life", lambda: node.events("receipt"), again, node)
    check_nothing_lost(swarm)
