"""A teacher that scores what the swarm generates, in real processes: `[distill] teacher` on the learner's machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.e2e.ledger_rules import Run, check_ledger
from tests.e2e.programs import Swarm, wait_done
from tests.integration.test_on_policy import BOUND

STEPS = 4


def with_teacher(swarm: Swarm, teacher: Path, trainer: str) -> None:
    swarm.configure(steps=STEPS, mode="sequential", staleness=0, trainer=trainer)
    with swarm.config.open("a", encoding="utf-8") as file:
        file.write(f'\n[distill]\nteacher = "{teacher}"\n')


@pytest.mark.rest
def test_a_policy_that_is_its_own_teacher_has_nothing_to_learn(swarm: Swarm) -> None:
    """So what the teacher says of each token is what the policy says of the same one: by turns, in float32."""
    with_teacher(swarm, swarm.model, 'objective = "distill"')
    learner = swarm.learn()
    node = swarm.join("one", engine="transformers")
    wait_done(learner, node)
    check_ledger(swarm, Run(steps=STEPS, staleness=0, verdicts=frozenset({"admitted"})))
    metrics = [json.loads(text) for (text,) in swarm.rows("SELECT metrics FROM steps ORDER BY step")]
    assert abs(metrics[0]["teacher_kl"]) <= BOUND["float32"]
    assert all(step["trained_tokens"] == step["tokens"] for step in metrics), "equal rewards are no reason to skip any"
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
