"""A teacher scores the swarm's completions, in real processes: `[distill] teacher` on the learner's machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.ledger_rules import Run, check_ledger, peer_of
from tests.e2e.programs import NODE_TOML, Program, Swarm, wait_done, wait_event
from tests.integration.test_on_policy import BOUND

STEPS = 4


def with_teacher(swarm: Swarm, teacher: Path, trainer: str, *, nodes: bool = False) -> None:
    swarm.configure(steps=STEPS, mode="sequential", staleness=0, trainer=trainer, audits=nodes)
    with swarm.config.open("a", encoding="utf-8") as file:
        file.write(f'\n[distill]\nteacher = "{teacher}"\nnodes = {str(nodes).lower()}\n')


@pytest.mark.rest
def test_a_policy_that_is_its_own_teacher_has_nothing_to_learn(swarm: Swarm) -> None:
    """The teacher's probability of each token equals the policy's: the run is by turns, in float32."""
    with_teacher(swarm, swarm.model, 'objective = "distill"')
    learner = swarm.learn()
    node = swarm.join("one", engine="transformers")
    wait_done(learner, node)
    check_ledger(swarm, Run(steps=STEPS, staleness=0, verdicts=frozenset({"admitted"})))
    metrics = [json.loads(text) for (text,) in swarm.rows("SELECT metrics FROM steps ORDER BY step")]
    assert abs(metrics[0]["teacher_kl"]) <= BOUND["float32"]
    assert all(step["trained_tokens"] == step["tokens"] for step in metrics), (
        "tokens were skipped, though equal rewards are no reason to"
    )
    made = learner.events("scores_made")
    assert sum(event["tokens"] for event in made) >= sum(step["tokens"] for step in metrics)


@pytest.mark.rest
def test_a_teacher_of_another_vocabulary_is_refused_at_the_start(swarm: Swarm) -> None:
    other = swarm.directory.parent / "other"
    shutil.copytree(swarm.model, other)
    text = (other / "tokenizer.json").read_text(encoding="utf-8")
    assert '"%": 63' in text
    (other / "tokenizer.json").write_text(text.replace('"%": 63', '"$": 63'), encoding="utf-8")
    with_teacher(swarm, other, 'objective = "distill"')
    for options in ((), ("--dry-run", "--quick")):
        refused = swarm.machine.call("learn", swarm.config, *options)
        assert refused.code != 0
        assert "[distill] teacher" in refused.err
        assert "another vocabulary than the policy" in refused.err


def teach(swarm: Swarm, name: str, teacher: Path, *options: object) -> Program:
    """Start a teacher node."""
    return swarm.join(name, "--teacher", teacher, *options, engine="transformers")


@pytest.mark.rest
def test_a_teacher_node_scores_and_is_believed_after_audits(swarm: Swarm) -> None:
    with_teacher(swarm, swarm.model, 'objective = "distill"', nodes=True)
    learner = swarm.learn()
    wait_event(learner, "version_published")
    teacher = teach(swarm, "teacher", swarm.model)
    wait_event(teacher, "joined", learner)  # nothing is generated before
    node = swarm.join("one", engine="transformers")
    wait_done(learner, teacher, node)
    check_ledger(swarm, Run(steps=STEPS, staleness=0, verdicts=frozenset({"admitted"})))
    metrics = [json.loads(text) for (text,) in swarm.rows("SELECT metrics FROM steps ORDER BY step")]
    assert abs(metrics[0]["teacher_kl"]) <= BOUND["float32"]
    assert not learner.events("scores_made"), "the learner scored itself, although a teacher is here"
    audited = learner.events("scores_audited")
    assert audited
    assert all(event["passed"] for event in audited)
    ((delivered, tokens),) = swarm.rows("SELECT count(*), sum(tokens) FROM teacher_leases WHERE engine_s IS NOT NULL")
    assert delivered == len(teacher.events("receipt"))
    assert tokens == sum(event["tokens"] for event in teacher.events("receipt"))
    assert tokens >= sum(step["tokens"] for step in metrics)
    for where in (swarm.config, teacher.state):
        told = swarm.machine.call("report", where)
        assert told.code == 0, told.err
        assert "teacher" in told.out


@pytest.mark.rest
def test_a_teacher_node_that_says_other_scores_is_banned_and_nothing_of_it_is_learnt(swarm: Swarm) -> None:
    with_teacher(swarm, swarm.model, 'objective = "distill"', nodes=True)
    config = swarm.directory / "liar.toml"
    text = NODE_TOML.format(engine="transformers", token_s=0.0)
    config.write_text(text.replace("[testing]", '[testing]\ncheat = "claims"'), encoding="utf-8")
    learner = swarm.learn()
    wait_event(learner, "version_published")
    liar = teach(swarm, "liar", swarm.model, "--config", config)
    wait_event(liar, "joined", learner)
    node = swarm.join("one", engine="transformers")
    wait_done(learner, node)  # the learner scores itself once the lying teacher is gone
    assert liar.wait() == 2
    assert "banned" in liar.story()
    ((banned,),) = swarm.rows("SELECT banned FROM confidence WHERE banned <> ''")
    assert "those of the teacher" in banned
    metrics = [json.loads(text) for (text,) in swarm.rows("SELECT metrics FROM steps ORDER BY step")]
    assert abs(metrics[0]["teacher_kl"]) <= BOUND["float32"], "the policy learned from the lying teacher's scores"
    told = swarm.machine.call("why", peer_of(swarm, liar), swarm.config, "--replay")
    assert told.code == 0, told.err
    assert "convicts it, as the ledger says" in told.out


@pytest.mark.rest
def test_who_cannot_teach_is_refused_before_it_loads_anything(swarm: Swarm) -> None:
    other = swarm.directory.parent / "other"
    shutil.copytree(swarm.model, other)
    (other / "config.json").write_text((other / "config.json").read_text() + " ")
    with_teacher(swarm, swarm.model, 'objective = "distill"', nodes=True)
    learner = swarm.learn()
    wait_event(learner, "version_published")
    for directory, why in (
        (other, "is not this swarm's teacher"),
        (swarm.directory, "[teacher] directory"),
    ):
        refused = teach(swarm, f"no-{directory.name}", directory)
        assert refused.wait() == 2
        assert why in refused.story()
    learner.interrupt()
    assert learner.wait() == 130
