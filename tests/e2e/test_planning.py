"""The set of active nodes changes with the swarm: two of four peers are killed, two cheaper ones come."""

from __future__ import annotations

import json

import pytest

from learner.ledger.queries.reader import read_ledger
from learner.provisioning.estimation.recording import FILE, Planned, read_lines
from tests.e2e.hashing_trainer import STEP_S
from tests.e2e.ledger_rules import Run, check_admitted
from tests.e2e.programs import Program, Swarm, wait_event, wait_for

PLAN = """
[provisioning]
review_interval_s = 0.25
"""


@pytest.mark.slow
def test_the_plan_follows_who_leaves_and_who_comes_for_less(doomed: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes as long as one peer needs for a batch even on a busy machine, so fewer than four are enough."""
    swarm = doomed
    monkeypatch.setenv(STEP_S, "0.5")
    swarm.configure(steps=100_000)
    swarm.config.write_text(swarm.config.read_text(encoding="utf-8") + PLAN, encoding="utf-8")
    learner = swarm.learn_doomed()
    dear = {name: swarm.join(name, "--price", 4.0) for name in ("one", "two", "three", "four")}
    for name in dear:
        wait_for(f"{name} switched on", lambda name=name: name in switched(learner, "peer_activated"), learner)
    wait_for("somebody released", lambda: switched(learner, "peer_released"), learner, *dear.values())
    standing = switched(learner, "peer_released")[0]
    told = wait_event(dear[standing], "no_lease", learner)
    assert "On standby" in told["reason"], told

    on = [name for name in dear if name not in switched(learner, "peer_released")]
    killed = [*on, *(name for name in dear if name not in on)][:2]
    for name in killed:
        dear[name].kill()
    left = [name for name in dear if name not in killed]
    wait_for("who is left switched on", lambda: active(swarm) <= set(left) and active(swarm), learner)
    cheap = {name: swarm.join(name, "--price", 0.5) for name in ("five", "six")}
    wait_for("the cheaper on, the dearer off", lambda: active(swarm) and active(swarm) <= set(cheap), learner)
    steps = swarm.steps_taken
    wait_for("training to go on", lambda: swarm.steps_taken > steps + 20, learner)

    learner.interrupt()
    assert learner.wait() == 130, learner.story()
    assert max(lag for (lag,) in swarm.rows("SELECT max(trained_lag) FROM records")) <= 3
    check_admitted(swarm, Run(steps=steps))
    check_report(swarm, learner)


def switched(learner: Program, event: str) -> list[str]:
    """Return the names of the peers in events of this kind, in order."""
    return [str(fields["name"]) for fields in learner.events(event)]


def active(swarm: Swarm) -> set[str]:
    """Return the names of the peers that are active by the last plan in the ledger."""
    with read_ledger(swarm.ledger_file) as ledger:
        plans = ledger.training.plans()
    names = dict(swarm.rows("SELECT peer, name FROM peers"))
    return {names[peer] for peer in plans[-1].active} if plans else set()


def check_report(swarm: Swarm, learner: Program) -> None:
    """Check that the report, its JSON, the log and the recording agree."""
    told = json.loads(swarm.machine.call("report", swarm.config, "--json").out)
    reasons = [reason for plan in told["plans"] for reason in plan["reasons"]]
    assert len(reasons) >= len(learner.events("peer_activated")) + len(learner.events("peer_released")) > 0
    stood_by = {peer["name"]: peer["hours_standby"] for peer in told["peers"] if peer["role"] == "rollout"}
    assert max(stood_by.values()) > 0
    assert all(abs(peer["cost"] - peer["hours_active"] * peer["price_per_hour"]) <= 1e-4 for peer in told["peers"]), (
        "a peer was paid for hours on standby"
    )
    text = swarm.machine.call("report", swarm.config).out
    assert "Plans" in text
    assert "standby" in text
    with (swarm.state / FILE).open("rb") as lines:
        plans = [event for event in read_lines(lines, FILE) if isinstance(event, Planned)]
    with read_ledger(swarm.ledger_file) as ledger:
        assert [sorted(plan.active) for plan in plans] == [sorted(plan.active) for plan in ledger.training.plans()]
