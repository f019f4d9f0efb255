"""Run `volery doctor` on a learner at work: anybody with the invite can run it, and the learner remembers nobody."""

from __future__ import annotations

import json

import pytest

from tests.e2e.programs import Swarm, wait_event, wait_for


@pytest.mark.rest
def test_a_learner_that_is_examined_has_no_peer_by_it(swarm: Swarm) -> None:
    swarm.configure(steps=2, token="sesame")
    learner = swarm.learn()
    wait_event(learner, "version_published")  # the invite is printed before
    outcome = swarm.machine.call("doctor", swarm.invite, "--json")
    assert outcome.code == 0, outcome.err
    told = json.loads(outcome.out)
    assert told["verdict"] == {
        "ability": "not_known",
        "can_take_part": True,
        "is_sure": True,
        "text": "It can take part; whether others can reach it is not known. Why: the learner is on this machine, so "
        "no peer looked from outside.",
    }
    assert abs(told["learner"]["clock_ahead_s"]["value"]) <= told["learner"]["clock_error_s"]["value"]
    assert told["machine"]["newest_version_s"]["text"].startswith("1.0, ")
    assert swarm.rows("SELECT COUNT(*) FROM peers WHERE role = 'rollout'") == [(0,)]
    assert learner.events("peer_joined") == []
    shown = wait_for("how it is reached", lambda: status(swarm).get("learner_reach"), learner)
    assert "not known" in str(shown)

    dry = swarm.machine.call("join", swarm.invite, "--dry-run")
    assert dry.code == 0
    assert "How this machine is connected" in dry.out
    wrong = swarm.machine.call("doctor", swarm.invite[:-8], "--json")
    assert wrong.code == 2
    assert json.loads(wrong.out)["error"]


def status(swarm: Swarm) -> dict[str, object]:
    told: dict[str, object] = json.loads(swarm.machine.call("status", swarm.config, "--json").out)
    return told
