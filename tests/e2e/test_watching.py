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
from tests.e2e.programs import Program, Swarm, free_port, wait_done, wait_event, wait_for
from tests.support.metrics_file import read_metric
from tests.support.reward_servers import Reply, Server, serving

STEPS = 8
ENDS_S = 10.0


def configure(swarm: Swarm, scraped: int, posted: str) -> None:
    swarm.configure(steps=STEPS, port=free_port(), held_out=4)
    wandb = 'wandb = "volery-tests"\nwandb_offline = true\n' if find_spec("wandb") else ""
    metrics = f'\n[metrics]\nprometheus = "127.0.0.1:{scraped}"\ntensorboard = true\n{wandb}'
    metrics += f'\n[notify]\nurl = "{posted}/hook/secret-token"\n'
    with swarm.config.open("a", encoding="utf-8") as file:
        file.write(metrics)


@pytest.mark.slow
def test_a_watched_run_goes_on_with_its_series(swarm: Swarm) -> None:
    with serving(lambda number, heard: Reply(value={})) as phone:
        watch_a_run(swarm, phone)


def watch_a_run(swarm: Swarm, phone: Server) -> None:
    scraped = free_port()
    configure(swarm, scraped, phone.url)
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
    assert learner.events("metrics_failed") == learner.events("notices_failed") == []
    ends = [heard.value["title"] for heard in phone.heard if heard.value["kind"] == "end"]
    assert [title.partition(": ")[2] for title in ends] == ["stopped", "finished"]
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


def test_a_node_is_told_its_rank_if_the_operator_shows_it(swarm: Swarm) -> None:
    swarm.configure(steps=4000, port=free_port())
    with swarm.config.open("a", encoding="utf-8") as file:
        file.write('\n[web]\nlisten = ""\nshow_ranks = true\n')
    learner = swarm.machine.start("learner", swarm.config, state=swarm.state, module="tests.e2e.reviewing")
    swarm.wait_invite(learner)
    node = swarm.join("node")
    told = wait_event(node, "rank_told", learner)
    assert (told["place"], told["peers"]) == (1, 1)
    assert told["admitted"] == told["admitted_by_all"] > 0


def test_a_page_is_kept_until_the_run_has_ended(swarm: Swarm) -> None:
    swarm.configure(steps=60, port=free_port())
    learner, page = swarm.learn_doomed(), swarm.directory / "run.html"
    keeper = swarm.machine.start("page", "report", swarm.config, "--html", page, "--every", 1, state=swarm.state)
    wait_for("the first page", page.exists, learner, keeper)
    assert 'http-equiv="refresh"' in page.read_text(encoding="utf-8")
    node = swarm.join("node")
    wait_done(learner, node)
    assert keeper.wait() == 0, keeper.story()
    text = page.read_text(encoding="utf-8")
    assert "<dt>training steps</dt><dd><b>60</b>" in text
    assert 'http-equiv="refresh"' not in text
