"""Members set limits: caps on what they send and receive, quotas of their stores, hours.

The trainer hashes where a test does not need the real one: torch takes longer to start than most of these take.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.e2e.ledger_rules import Run, check_ledger, check_receipts
from tests.e2e.programs import Program, Swarm, wait_done, wait_event, wait_for
from tests.e2e.test_bad_input import TROUBLE, USAGE, check_refusal

STEPS = 8
CAPS = ("--upload-mbit", 50, "--download-mbit", 100)


def limit(swarm: Swarm, quota_gb: float) -> None:
    """Give the learner caps and a quota."""
    limits = f"upload_mbit = 100\ndownload_mbit = 50.0\n\n[store]\nquota_gb = {quota_gb:.9f}\n\n[model]"
    swarm.config.write_text(swarm.config.read_text().replace("[model]", limits))


def model_gb(swarm: Swarm) -> float:
    """Return about what a version takes, in GB."""
    return sum(path.stat().st_size for path in swarm.model.iterdir()) / 1e9


def version_gb(learner: Program) -> float:
    """Return what a version takes, in GB."""
    return float(wait_event(learner, "version_published")["total_bytes"]) / 1e9


def disk_gb(store: Path) -> float:
    """Return what versions and patches take on the disk, in GB."""
    return sum(path.stat().st_size for path in (store / "versions").rglob("*") if path.is_file()) / 1e9


def test_a_run_within_limits(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS)
    most_gb = 2.5 * model_gb(swarm)
    limit(swarm, most_gb)
    learner = swarm.learn_doomed()
    quota_gb = 2.5 * version_gb(learner)
    node = swarm.join("node", *CAPS, "--quota-gb", f"{quota_gb:.9f}")
    wait_done(learner, node)
    check_ledger(swarm, Run(steps=STEPS))
    check_receipts(swarm, node)
    assert not node.troubles, node.story()
    assert disk_gb(swarm.directory / "node" / "store") <= quota_gb
    assert disk_gb(swarm.state / "store") <= most_gb


def test_outside_its_owners_hours_a_node_holds_what_is_newest_and_makes_nothing(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS)
    learner = swarm.learn_doomed()
    begin, end = ((datetime.now() + timedelta(hours=hours)).strftime("%H:%M") for hours in (6, 12))
    resting = swarm.join("resting", "--hours", f"{begin}-{end}")
    assert wait_event(resting, "hours_ended", learner)["again_at"] == begin
    wait_event(resting, "version_installed", learner)
    wait_done(learner, swarm.join("node"), resting)
    check_ledger(swarm, Run(steps=STEPS))
    leased = "SELECT DISTINCT name FROM leases JOIN peers USING (peer)"
    assert swarm.rows(leased) == [("node",)]
    assert not resting.events("speed_measured"), "a resting node was given a trial"
    assert len(resting.events("version_installed")) > 1


def test_a_quota_that_holds_one_version_keeps_that_in_service_and_says_what_to_set(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS)
    learner = swarm.learn_doomed()
    size_gb = version_gb(learner)
    node = swarm.join("node", "--quota-gb", f"{1.5 * size_gb:.9f}")
    first = wait_event(node, "version_installed", learner)["version"]
    trouble = wait_for("a refusal", lambda: node.troubles, node, learner)[0]
    assert "Set [store] quota_gb to" in trouble
    assert "The active version stays in use" in trouble
    assert [event["version"] for event in node.events("version_installed")] == [first]
    assert node.is_running
    node.interrupt()
    node.wait()

    # With its old state, and more room, it goes on.
    wait_done(learner, swarm.join("node", "--quota-gb", f"{2.5 * size_gb:.9f}"))


@pytest.mark.slow
def test_a_learner_whose_quota_holds_one_version_stops_and_goes_on_with_more(swarm: Swarm) -> None:
    swarm.configure(steps=STEPS, port=0)
    unlimited = swarm.config.read_text()
    limit(swarm, 1.5 * model_gb(swarm))
    learner = swarm.learn()
    node = swarm.join("node")
    assert learner.wait() == TROUBLE, learner.story()
    assert "Set [store] quota_gb to" in learner.err.read_text()
    node.interrupt()
    node.wait()

    swarm.config.write_text(unlimited)
    learner = swarm.learn()
    wait_done(learner, swarm.join("node"))


def test_limits_that_are_none(swarm: Swarm) -> None:
    swarm.configure()
    learner = swarm.learn_doomed()
    for option in ("--upload-mbit", "--download-mbit", "--quota-gb"):
        for value in ("0", "-1", "nan"):
            check_refusal(swarm.machine.call("join", swarm.invite, option, value), USAGE, f"{option} ")
        assert swarm.machine.call("join", swarm.invite, option, "much").code == USAGE
    assert learner.is_running
