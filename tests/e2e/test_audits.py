"""Real processes: a volunteer is trusted after eight audits; a node that makes tokens up is banned for good."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from learner.trust.audit_history import NEWCOMER_GROUPS
from tests.e2e.ledger_rules import HONEST, Run, check_ledger, peer_of
from tests.e2e.programs import Swarm, stopped, wait_event

WHY = re.compile(r"are not what the seeded sampler draws|log probabilities are more than .* from those of the version")
"""Reason of the ban. Made-up tokens with made-up probabilities fail both tests; the audit names the one that failed
more clearly."""


@pytest.mark.rest
def test_who_makes_tokens_up_is_banned_and_costs_the_swarm_nothing(swarm: Swarm) -> None:
    swarm.configure(steps=14, audits=True)
    learner = swarm.learn()
    with stopped(learner.child("learner.training.server")):  # nothing is published before both are there
        honest, cheat = swarm.join("honest", engine="transformers"), swarm.join("cheat")
        for node in (honest, cheat):
            wait_event(node, "joined", learner)
    wait_event(learner, "peer_banned")
    # otherwise the run could be over before the cheat comes back
    with stopped(learner.child("learner.training.server")):
        assert cheat.wait() == 2, cheat.story()
        assert "This key is banned from the swarm" in cheat.err.read_text(), cheat.story()
        assert "Its report: volery report " in cheat.out.read_text(), cheat.story()
        assert WHY.search(cheat.err.read_text()), cheat.story()
        again = swarm.join("cheat")
        assert again.wait() == 2, again.story()
        assert "This key is banned from the swarm" in again.err.read_text(), again.story()
    assert [program.wait() for program in (learner, honest)] == [0, 0], learner.story()
    check_ledger(swarm, Run(steps=14, verdicts=HONEST | {"audit", "banned", "unknown_lease"}))

    honest_id, cheat_id = peer_of(swarm, honest), peer_of(swarm, cheat)
    [(passed, failed, banned)] = swarm.rows("SELECT passed, failed, banned FROM confidence WHERE peer = ?", honest_id)
    assert passed >= NEWCOMER_GROUPS
    assert (failed, banned) == (0, "")
    [(failed, banned)] = swarm.rows("SELECT failed, banned FROM confidence WHERE peer = ?", cheat_id)
    assert failed == 1
    assert WHY.search(banned), banned
    assert swarm.rows("SELECT count(*) FROM records WHERE peer = ? AND step IS NOT NULL", cheat_id) == [(0,)]
    assert swarm.rows("SELECT count(*) FROM records WHERE peer = ? AND rule = 'admitted'", cheat_id) == [(0,)]
    [(worst,)] = swarm.rows("SELECT max(worst) FROM audits WHERE peer = ?", honest_id)
    assert worst == 0.0, "both sides compute in float32, so there is no gap"
    revised = wait_event(cheat, "receipt_revised")
    assert revised["reason"] in ("audit", "banned")


@pytest.mark.rest
def test_what_convicted_a_cheat_is_regenerated_by_the_command(swarm: Swarm) -> None:
    swarm.configure(steps=6, audits=True, staleness=12)  # so that the store still has the version that the cheat named
    learner = swarm.learn()
    with stopped(learner.child("learner.training.server")):
        honest, cheat = swarm.join("honest", engine="transformers"), swarm.join("cheat")
        for node in (honest, cheat):
            wait_event(node, "joined", learner)
    assert cheat.wait() == 2, cheat.story()
    assert [program.wait() for program in (learner, honest)] == [0, 0], learner.story()
    [(lease,)] = swarm.rows("SELECT lease FROM evidence")
    for name, said in (
        (lease.hex(), "By itself the group fails, as it did in the audit."),
        (peer_of(swarm, cheat), "Audit 1 convicts it, as the ledger says."),
    ):
        arguments = [sys.executable, "-m", "node", "why", name, str(swarm.config), "--replay"]
        told = subprocess.run(arguments, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
        assert said in told.stdout
