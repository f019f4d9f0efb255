"""Run the two modes, one line of the same swarm.toml apart: generating while training, and by turns."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.ledger_rules import Run, check_by_turns, check_ledger, check_receipts, skipped
from tests.e2e.programs import Swarm, wait_done
from tests.integration.test_on_policy import BOUND

STEPS = 6
STALENESS = 3
PUBLISH_EVERY = 2


def run_in(swarm: Swarm, mode: str) -> dict[str, Any]:
    """Run the swarm in `mode` to its end, with all other settings at their defaults; return the report."""
    swarm.configure(steps=STEPS, staleness=STALENESS, publish_every=PUBLISH_EVERY, weights_dtype="float32")
    text = swarm.config.read_text(encoding="utf-8")
    assert text.count('mode = "async"') == 1
    swarm.config.write_text(text.replace('mode = "async"', f'mode = "{mode}"'), encoding="utf-8")
    learner = swarm.learn()
    nodes = swarm.join_all(learner, ["one"], ["other"], engine="transformers")
    wait_done(learner, *nodes)
    for node in nodes:
        check_receipts(swarm, node)
        (joined,) = node.events("joined")
        assert joined["staleness"] == (0 if mode == "sequential" else STALENESS)
    report: dict[str, Any] = json.loads(swarm.machine.call("report", swarm.config, "--json").out)
    assert report["mode"] == mode
    totals, time = report["totals"], report["totals"]["learner_time"]
    assert 0 < totals["learner_utilisation"] == time["training_s"] / time["wall_s"] < 1 - totals["bubble"]
    return report


def metrics_of(swarm: Swarm) -> list[dict[str, float]]:
    """Return the trainer's metrics of each step that had something to learn. A batch whose groups were all rewarded
    alike has no importance ratio.
    """
    metrics = [json.loads(text) for (text,) in swarm.rows("SELECT metrics FROM steps ORDER BY step")]
    trained = [step for step in metrics if step["trained_tokens"]]
    assert trained, "no step learned anything"
    return trained


@pytest.mark.rest
def test_sequential_every_step_trains_on_what_the_version_before_it_made(swarm: Swarm) -> None:
    report = run_in(swarm, "sequential")
    run = Run(steps=STEPS, staleness=0, verdicts=frozenset({"admitted"}))
    check_ledger(swarm, run)
    check_by_turns(swarm, run)
    assert report["staleness_bound"] == 0
    assert report["lag_histogram"] == {"0": STEPS * run.batch}
    metrics = metrics_of(swarm)
    assert max(step["max_log_ratio"] for step in metrics) <= BOUND["float32"]
    text = swarm.machine.call("report", swarm.config).out
    assert "sequential, S = 0" in text


@pytest.mark.rest
def test_async_no_rollout_is_older_than_the_window(swarm: Swarm) -> None:
    report = run_in(swarm, "async")
    check_ledger(swarm, Run(steps=STEPS, staleness=STALENESS))
    assert report["staleness_bound"] == STALENESS
    published = [version for (version,) in swarm.rows("SELECT version FROM versions ORDER BY version")]
    assert set(range(0, STEPS + 1, PUBLISH_EVERY)) - set(published) <= skipped(swarm)
    lags = {int(lag) for lag in report["lag_histogram"]}
    assert max(lags) <= STALENESS
    assert lags > {0}, "no record has a lag, though not every step has a version to wait for"
    assert max(step["max_log_ratio"] for step in metrics_of(swarm)) > BOUND["float32"]
