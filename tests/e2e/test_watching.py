"""A run that is watched from everywhere at once, stopped by Ctrl-C, and started again."""

from __future__ import annotations

import json
import time
from importlib.util import find_spec
from urllib.request import urlopen

import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from node.learner_role.metrics.sqlite import FILE
from tests.e2e.programs import Program, Swarm, free_port, wait_done, wait_event
from tests.support.metrics_file import read_metric

STEPS = 8
ENDS_S = 10.0


def configure(swarm: Swarm, scraped: int) -> None:
    swarm.configure(steps=STEPS, port=free_port(), held_out=4)
    wandb = 'wandb = "volery-tests"\nwandb_offline = true\n' if find_spec("wandb") else ""
    metrics = f'\n[metrics]\nprometheus = "127.0.0.1:{scraped}"\ntensorboard = true\n{wandb}'
    with swarm.config.open("a", encoding="utf-8") as file:
        file.write(metrics)


@pytest.mark.slow
def test_a_watched_run_goes_on_with_its_series(swarm: Swarm) -> None:
    scraped = free_port()
    configure(swarm, scraped)
    learner, node = swarm.learn(), swarm.join("node")
    swarm.wait_steps(3, learner, node)
    with urlopen(f"http://127.0.0.1:{scraped}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    assert "volery_reward " in page
    assert 'volery_rollouts_trained_total{lag="' in page
    assert json.loads(swarm.machine.call("status", swarm.config, "--json").out)["doing"] == "at work"
    stop(learner)
    assert "not running" in swarm.machine.call("status", swarm.config).out

    learner = swarm.learn()
    wait_event(learner, "incarnation_began", incarnation=2)
    wait_done(learner, node)
    assert learner.events("metrics_failed") == []
    steps = [step for step, _, _ in read_metric(swarm.state / FILE, "reward")]
    assert steps == list(range(1, STEPS + 1))
    assert [step for step, _, _ in read_metric(swarm.state / FILE, "greedy")][-1] == STEPS
    events = EventAccumulator(str(swarm.state / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("training/reward")] == steps
    if find_spec("wandb"):
        assert list((swarm.state / "wandb").glob("offline-run-*/run-*.wandb"))
    for version in (1, STEPS):
        told = json.loads(swarm.machine.call("samples", swarm.config, "--version", version, "--json").out)
        assert told["step"] == version
        assert all(one["completions"] for one in told["groups"])


def stop(learner: Program) -> None:
    """Press Ctrl-C. A process that sends metrics elsewhere meanwhile ends by itself."""
    family = learner.family()
    began = time.monotonic()
    learner.interrupt()
    assert learner.wait() == 130, learner.story()
    assert time.monotonic() - began < ENDS_S
    _, left = psutil.wait_procs(family[1:], timeout=ENDS_S)
    assert not left, left
