"""A task of several turns in a swarm of real processes: to its end, over a kill in mid-episode, and with success."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.tasks.registry import open_task
from tests.e2e.ledger_rules import (
    Run,
    check_admitted,
    check_episodes,
    check_leases,
    check_nothing_lost,
    check_receipts,
    check_versions,
)
from tests.e2e.models import write_guesser
from tests.e2e.programs import Machine, Program, Swarm, free_port, stopped, wait_done, wait_event, wait_for, wait_gone

TASK = "guess"
STEPS = 6


@pytest.fixture(scope="module")
def guesser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3 of 50 k parameters that guesses at random."""
    directory = tmp_path_factory.mktemp("turns") / "model"
    write_guesser(
        directory, open_task(TASK, seed=7), lr=5e-3, batch=64, hidden_size=64, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, intermediate_size=128, vocab_size=64,
        max_position_embeddings=64, initializer_range=0.1,
    )  # fmt: skip
    return directory


@pytest.fixture
def guessing(machine: Machine, guesser: Path) -> Swarm:
    return Swarm(machine=machine, directory=machine.root / "swarm", model=guesser)


def check(swarm: Swarm, run: Run, *nodes: Program) -> None:
    """Check the rules for every ledger, and those for episodes."""
    assert check_episodes(swarm, run) > run.steps, "too few episodes had a second turn"
    check_admitted(swarm, run)
    check_nothing_lost(swarm)
    check_versions(swarm)
    check_leases(swarm)
    for node in nodes:
        check_receipts(swarm, node)


@pytest.mark.rest
def test_a_run_of_episodes_by_turns_ends(guessing: Swarm) -> None:
    guessing.configure(steps=4, task=TASK, mode="sequential", staleness=0, held_out=8)
    learner = guessing.learn()
    nodes = guessing.join_all(learner, ["one"], ["two", "--no-listen"], engine="transformers")
    wait_done(learner, *nodes)
    check(guessing, Run(steps=4, staleness=0), *nodes)
    assert len(learner.events("evaluated")) >= 2
    said = guessing.machine.call("report", guessing.config).out
    assert "later turns or parts of an episode" in " ".join(said.split())


@pytest.mark.slow
def test_a_learner_killed_in_mid_episode_loses_nothing(guessing: Swarm) -> None:
    guessing.configure(steps=STEPS, task=TASK, port=free_port(), heartbeat_s=5.0)
    learner = guessing.learn()
    nodes = guessing.join_all(learner, ["one"], ["two"], engine="transformers")
    going_on = "SELECT lease, idx FROM records WHERE rule = 'admitted' AND reward IS NULL AND step IS NULL"
    guessing.wait_steps(2, learner, *nodes)
    with stopped(learner.child("learner.training.server")):  # no step consumes the episodes that go on meanwhile
        begun = set(wait_for("an episode that goes on", lambda: guessing.rows(going_on), learner, *nodes))
        joined = [len(node.events("joined")) for node in nodes]
        children = learner.family()[1:]
        learner.kill()
    wait_gone(children)
    learner = guessing.learn()
    for node, before in zip(nodes, joined, strict=True):
        wait_event(node, "joined", learner, after=before)
    recovered = wait_event(learner, "buffer_recovered", after=1)
    assert recovered["episodes"] > 0
    wait_done(learner, *nodes)
    check(guessing, Run(steps=STEPS, incarnations=2), *nodes)
    trained = "SELECT lease, idx FROM records WHERE step IS NOT NULL"
    assert begun & set(guessing.rows(trained)), "turns from before the kill were never trained on"


@pytest.mark.slow
def test_a_policy_learns_to_use_what_it_is_answered(guessing: Swarm) -> None:
    """Four guesses of ten find 40 % at best without reading the answers, and all by halving."""
    guessing.configure(steps=240, task=TASK, staleness=2, held_out=256, learning_rate=3e-3)
    text = guessing.config.read_text(encoding="utf-8")
    text = text.replace("prompts_per_step = 4", "prompts_per_step = 16").replace("group_size = 4", "group_size = 8")
    guessing.config.write_text(text.replace("every_versions = 3", "every_versions = 15"), encoding="utf-8")
    learner = guessing.learn()
    guessing.join_all(learner, ["one"], ["two"], engine="transformers")
    assert learner.wait(900) == 0, learner.story()
    scores = [event["sampled"] for event in learner.events("evaluated")]
    assert scores[0] < 0.4
    assert scores[-1] > 0.5, scores
