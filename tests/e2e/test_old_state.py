"""State directories of the release before go on: a learner's and a node's, as its programs left them.

Commit 6640aef wrote `recorded/state_before_the_house.tgz`, before modules and classes were renamed. It holds a learner
with `tests.e2e.doomed` and one node on the fake engine, stopped by Ctrl-C after a few steps (`swarm/state`,
`swarm/node`, and the model that they name).
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

from tests.e2e.ledger_rules import HONEST, Run, check_ledger
from tests.e2e.programs import Swarm, receipts_of, wait_done

RECORDED = Path(__file__).parent / "recorded" / "state_before_the_house.tgz"
STEPS = 16


def test_a_learner_and_a_node_of_the_release_before_go_on(doomed: Swarm) -> None:
    shutil.rmtree(doomed.model)
    with tarfile.open(RECORDED) as archive:
        archive.extractall(doomed.machine.root, filter="data")
    taken, kept = doomed.steps_taken, doomed.rows("SELECT lease, idx, record FROM records")
    assert 0 < taken < STEPS
    peers = {(doomed.directory / "node" / "node.key").read_bytes(), (doomed.state / "learner.key").read_bytes()}
    doomed.configure(steps=STEPS, heartbeat_s=0.5)
    learner = doomed.learn_doomed()
    node = doomed.join("node")
    wait_done(learner, node)
    check_ledger(doomed, Run(steps=STEPS, incarnations=2, verdicts=HONEST))
    assert set(kept) < set(doomed.rows("SELECT lease, idx, record FROM records"))
    assert len(receipts_of(node)) == len(doomed.rows("SELECT lease, idx, record FROM records")), "of both releases"
    assert peers == {(doomed.directory / "node" / "node.key").read_bytes(), (doomed.state / "learner.key").read_bytes()}
    for command in (("report", doomed.config), ("report", doomed.directory / "node"), ("status", doomed.config)):
        outcome = doomed.machine.call(*command)
        assert (outcome.code, outcome.err) == (0, ""), command
