"""Preferences from a small file, by a real learner alone: nobody joins, nothing is leased, and it ends by itself."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.programs import Program, Swarm

STEPS = 8
WORDS = ("ab", "cd", "ef", "gh", "ij", "kl", "mn", "op")


def prefer(swarm: Swarm, *, steps: int) -> None:
    """Write a swarm.toml of DPO on pairs alone: words forwards are preferred to words backwards."""
    swarm.configure(steps=steps, learning_rate=2e-3)
    text = swarm.config.read_text(encoding="utf-8")
    text = text.replace("[trainer]\n", '[trainer]\nobjective = "dpo"\n').replace("every_versions = 3\n", "")
    task, learn = text.index("[task]"), text.index("[learn]")
    logs = '[offline]\npath = "pairs.jsonl"\nshare = 1.0\n\n'
    swarm.config.write_text(text[:task] + logs + text[learn:], encoding="utf-8")
    rows = [{"prompt": f"rev:{word}=", "chosen": word, "rejected": word[::-1]} for word in WORDS]
    (swarm.directory / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def metrics_of(swarm: Swarm) -> list[dict[str, float]]:
    return [json.loads(metrics) for (metrics,) in swarm.rows("SELECT metrics FROM steps ORDER BY step")]


def learn(swarm: Swarm, *, steps: int) -> Program:
    prefer(swarm, steps=steps)
    learner = swarm.learn()
    assert learner.wait() == 0, learner.story()
    return learner


def change_weights(swarm: Swarm) -> None:
    """Change the last weights: reverse their order."""
    path = swarm.model / "model.safetensors"
    raw = path.read_bytes()
    path.write_bytes(raw[:-64] + bytes(255 - byte for byte in raw[-64:]))


def test_a_learner_learns_preferences_from_pairs_without_any_peer(swarm: Swarm) -> None:
    swarm.model = Path(shutil.copytree(swarm.model, swarm.machine.root / "model of its own"))
    learner = learn(swarm, steps=STEPS)
    assert swarm.rows("SELECT count(*) FROM leases") == [(0,)]
    assert swarm.rows("SELECT sum(rollouts), count(*) FROM steps") == [(0, STEPS)]
    metrics = metrics_of(swarm)
    assert {step["offline_sequences"] for step in metrics} == {16}
    assert metrics[0]["preference_loss"] == pytest.approx(0.6931, abs=1e-3), (
        "the first loss is not that of the reference, ln 2"
    )
    losses = [step["preference_loss"] for step in metrics]
    assert losses[-1] < losses[STEPS // 2] < losses[1]
    assert metrics[-1]["preference_accuracy"] == 1.0
    assert set(metrics[-1]["by_lag"]) == {"offline"}  # type: ignore[call-overload]
    assert [event["note"] for event in learner.events("task_opened")][-1].endswith("16 completions, 8 of them pairs")
    said = swarm.machine.call("report", swarm.config).out
    assert f"{STEPS} training steps" in said
    change_weights(swarm)
    outcome = swarm.machine.call("learn", swarm.config, "--resume")
    assert (outcome.code, outcome.out) == (2, "")
    assert "does not hold the model that this run began with (model.safetensors)" in outcome.err
    assert '[trainer] objective = "dpo" compares the policy with it. Put that model back' in outcome.err


def test_a_learner_of_logs_alone_needs_no_address(swarm: Swarm) -> None:
    """The refusal of `listen = []` proposes this configuration, and it works: no node can join, and none is needed."""
    prefer(swarm, steps=2)
    text = swarm.config.read_text(encoding="utf-8")
    swarm.config.write_text(text.replace('listen = ["/ip4/127.0.0.1/tcp/0"]', "listen = []"), encoding="utf-8")
    swarm.state.mkdir()
    (swarm.state / "invite").write_text("of an earlier start, which listened")
    learner = swarm.machine.start("learner", "learn", swarm.config, state=swarm.state)
    assert learner.wait() == 0, learner.story()
    assert swarm.steps_taken == 2
    said = learner.out.read_text()
    assert "There is no invite: with [network] listen = [] nobody can join" in said
    assert "volery join" not in said
    assert not (swarm.state / "invite").exists()
    outcome = swarm.machine.call("invite", swarm.config)
    assert (outcome.code, "With [network] listen = [] nobody can join" in outcome.err) == (2, True)


@pytest.mark.slow
def test_preferences_go_on_after_a_restart_from_the_same_reference(swarm: Swarm) -> None:
    learn(swarm, steps=STEPS // 2)
    learn(swarm, steps=STEPS)
    losses = [step["preference_loss"] for step in metrics_of(swarm)]
    assert losses[-1] < losses[STEPS // 2] < losses[1]
