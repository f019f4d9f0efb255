"""Real processes: an honest volunteer is believed after eight audits, one that makes tokens up is banned for good."""

from __future__ import annotations

import re
import subprocess
import sys

from learner.verification.share import NEWCOMER_GROUPS
from tests.e2e.ledger_rules import HONEST, Run, check_ledger, peer_of
from tests.e2e.programs import Swarm, stopped, wait_event

WHY = re.compile(r"are not what the seeded sampler draws|log probabilities are more than .* from those of the version")
"""The one that is further from what may be, of made up tokens with made up probabilities."""


def volery(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A command, to its end."""
    return subprocess.run([sys.executable, "-m", "node", *map(str, arguments)], capture_output=True, text=True)


def test_who_makes_tokens_up_is_banned_and_costs_the_swarm_nothing(swarm: Swarm) -> None:
    swarm.configure(steps=14, audits=True, staleness=30)  # so that the store still has what the cheat named
    learner = swarm.learn()
    with stopped(learner.child("learner.trainer")):  # nothing is published before both are there
        honest, cheat = swarm.join("honest", engine="transformers"), swarm.join("cheat")
        for node in (honest, cheat):
            wait_event(node, "joined", learner)
    assert cheat.wait() == 2, cheat.story()
    assert "This key is banned from the swarm" in cheat.err.read_text(), cheat.story()
    assert WHY.search(cheat.err.read_text()), cheat.story()
    [(lease,)] = swarm.rows("SELECT lease FROM evidence")
    again_said = {
        lease.hex(): "By itself the group fails, as it did then.",
        peer_of(swarm, cheat): "Audit 1 convicts it",
    }
    for name, said in again_said.items():
        told = volery("why", name, swarm.config, "--replay")
        assert told.returncode == 0, told.stderr
        assert said in told.stdout
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
    assert worst == 0.0, "float32 on both sides"
    revised = wait_event(cheat, "receipt_revised")
    assert revised["reason"] in ("audit", "banned")
