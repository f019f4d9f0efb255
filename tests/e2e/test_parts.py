"""A node is stopped in the middle of its leases, with real processes: nothing that it made is lost."""

from __future__ import annotations

import time

import pytest

from tests.e2e.ledger_rules import peer_of
from tests.e2e.programs import Program, Swarm, wait_event, wait_for

STEPS = 100_000
"""More steps than a test waits for: this swarm is ended from outside."""

TOKENS, SLOW_S = 40, 0.3
"""Tokens of a completion at most, and seconds a token. A lease takes twelve seconds, so a node can be stopped in its
middle."""


def wait_begun(swarm: Swarm, node: Program, *others: Program) -> None:
    """Wait until the node has worked on a lease for the time of some tokens."""

    def begun() -> bool:
        rows = swarm.rows(
            "SELECT l.issued_ms FROM leases l JOIN peers p USING (peer)"
            " WHERE p.name = ? AND l.status = 'open' AND l.started_version IS NOT NULL",
            node.name,
        )
        return any(1000 * time.time() - issued > 20_000 * SLOW_S for (issued,) in rows)

    wait_for("a lease that is begun", begun, node, *others)


@pytest.mark.parametrize(
    "way", ["interrupt", pytest.param("drain", marks=pytest.mark.rest), pytest.param("pause", marks=pytest.mark.rest)]
)
def test_what_a_node_had_made_when_it_was_stopped_is_finished_by_another(swarm: Swarm, way: str) -> None:
    swarm.configure(steps=STEPS)
    settings = swarm.config.read_text(encoding="utf-8")
    swarm.config.write_text(settings.replace("max_new_tokens = 4", f"max_new_tokens = {TOKENS}"), encoding="utf-8")
    learner = swarm.learn_doomed()
    leaver = swarm.join("leaver", token_s=SLOW_S)
    wait_begun(swarm, leaver, learner)
    if way == "interrupt":
        leaver.interrupt()
        assert leaver.wait() == 130, leaver.story()
    elif way == "drain":
        assert swarm.machine.call("drain", leaver.state, "--within", "0").code == 0
        assert leaver.wait() == 0, leaver.story()
    else:
        assert swarm.machine.call("pause", leaver.state).code == 0
    wait_event(leaver, "handed_back", learner)
    peer = peer_of(swarm, leaver)
    wait_event(learner, "lease_handed_back", leaver, peer=peer)
    stayer = swarm.join("stayer")

    def trained() -> bool:
        left = swarm.rows(
            "SELECT count(*), sum(step IS NULL) FROM records WHERE peer = ? AND lease IN"
            " (SELECT lease FROM leases WHERE status = 'returned')",
            peer,
        )
        return bool(left[0][0]) and left[0][1] == 0

    wait_for("what was handed back to be trained on", trained, learner, stayer)
    told, taken = leaver.events("handed_back"), learner.events("lease_handed_back")
    assert sum(event["tokens"] for event in told) == sum(event["tokens"] for event in taken) > 0
    ((refused,),) = swarm.rows("SELECT count(*) FROM records WHERE rule <> 'admitted'")
    assert refused == 0
    others = swarm.rows(
        "SELECT count(*) FROM continuations JOIN records USING (lease) WHERE peer = ?", peer_of(swarm, stayer)
    )
    assert others[0][0] > 0, "no other node continued the lease"
