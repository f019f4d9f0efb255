"""A task whose rewards are all zero, in a swarm of real processes: the learner says so, and so do its commands."""

from __future__ import annotations

import json

import pytest

from learner.monitoring.thresholds import LIMITS
from tests.e2e.programs import Swarm, wait_done

STEPS = LIMITS.barren + 4


@pytest.mark.rest
def test_a_task_that_never_rewards_raises_an_alarm(swarm: Swarm) -> None:
    """`jsonl` with answers that four tokens of this model cannot say."""
    swarm.configure(steps=STEPS, task="jsonl:never.jsonl")
    lines = [
        json.dumps({"prompt": f"say {number}", "answer": "a long answer that never comes"}) for number in range(64)
    ]
    (swarm.directory / "never.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    learner = swarm.learn()
    node = swarm.join("one", engine="transformers")
    wait_done(learner, node)
    assert {reward for (reward,) in swarm.rows("SELECT reward FROM steps")} == {0.0}
    [raised] = learner.events("alarm_raised")
    assert (raised["alarm"], raised["step"]) == ("nothing_learnt", LIMITS.barren)
    assert learner.events("alarm_cleared") == []
    assert "alarms                 nothing_learnt" in swarm.machine.call("status", swarm.config).out
    report = " ".join(swarm.machine.call("report", swarm.config).out.split())
    assert "nothing can be learnt from them. If rewards are at their lowest, look at completions" in report
    assert "ALARM at step" in learner.out.read_text(encoding="utf-8")
