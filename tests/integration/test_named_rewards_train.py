"""Rewards with names beside a task with one, through a learner's loops: six steps, to the trainer and into the ledger.

The verifiers' processes and the ledger are real, the trainer and the peer are not.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from node.config.swarm_config import (
    LearnSection,
    MixtureTask,
    ModelSection,
    SwarmConfig,
    SwarmSection,
    TaskSection,
    VerifiersSection,
)
from node.tasks.api.interface import TaskError
from node.tasks.task_suite import open_task_suite
from node.verifiers.dispatch import Verifiers, require_here
from tests.support.byte_mutations import write_byte_tokenizer
from tests.support.learner_fixture import FakePeer, Settings, open_learner

pytestmark = pytest.mark.usefixtures("mock_clock")

STEPS = 6

TASK = """
from volery import CANNOT_SAY, Completion, Problem, Reward

class Named:
    name = "named"
    levels = 1
    fingerprint = "named/1"
    reward_weights = {"style": 0.25, "length": 0.0}

    def problem(self, index: int) -> Problem:
        return Problem(prompt=f"say {index}", answer="ab")

    held_out = problem

    def reward(self, problem: Problem, completion: Completion) -> Reward:
        if completion.text != problem.answer and hash_of(completion.text) % 8 == 7:
            return CANNOT_SAY
        style = CANNOT_SAY if hash_of(completion.text) % 2 else 0.5
        right = float(completion.text == problem.answer)
        return {"right": right, "style": style, "length": len(completion.text)}

def hash_of(text: str) -> int:
    return sum(text.encode("utf-8", "replace"))

def make(arguments):
    return Named()
"""


def suite_config(root: Path) -> SwarmConfig:
    (root / "model").mkdir()
    write_byte_tokenizer(root / "model")
    (root / "named_task.py").write_text(TASK)
    mixture = [
        MixtureTask(spec="python:named_task:make", name="named"),
        MixtureTask(spec="reverse:letters=3", name="one"),
    ]
    return SwarmConfig(
        swarm=SwarmSection(name="n"),
        model=ModelSection(directory=str(root / "model")),
        task=TaskSection(mixture=mixture, held_out=1),
        learn=LearnSection(steps=STEPS, max_new_tokens=4),
    )


async def test_six_steps_with_rewards_that_have_names(tmp_path: Path) -> None:
    suite = open_task_suite(suite_config(tmp_path), tmp_path)
    section = VerifiersSection(workers=1)
    require_here(suite, section, "right")
    async with open_learner(tmp_path, Settings(steps=STEPS, prompts=2, group_size=2)) as learner:
        verifiers = Verifiers(suite=suite, section=section, events=learner.sessions.events)
        assert verifiers.pooled == ["named"]
        learner.scheduler.next_prompt = suite.next_prompt
        object.__setattr__(learner.intake, "ask", verifiers.replies)
        learner.training.ask_one = verifiers.ask_one
        async with verifiers.open():
            await learner.train(FakePeer())
        assert [step["step"] for step in learner.logged("step")] == list(range(1, STEPS + 1))
        assert learner.logged("reward_failed") == []
        assert verifiers.failures == 0
        assert {one["dropped"] for one in learner.logged("delivery_judged") if one["dropped"]} <= {"void"}
        rows = learner.ledger.training.newest_steps(STEPS)
        with learner.ledger.transaction() as db:
            kept = db.execute(
                "SELECT r.reward, sum(p.value * p.weight), count(*) FROM reward_parts p"
                " JOIN records r USING (lease, idx) GROUP BY lease, idx"
            ).fetchall()
    trained = [arrays for arrays in learner.trainer.trained if "parts" in arrays]
    assert trained
    for arrays in trained:
        parts, weights = arrays["parts"].astype(np.float64), arrays["part_weights"]
        assert np.nansum(parts * weights, axis=1) == pytest.approx(arrays["rewards"])
        assert parts.shape[1] == 4, "there must be the unnamed reward and three others"
        assert (np.isnan(parts[:, 0]) != np.isnan(parts[:, 1])).all(), "each reward must be of one task or of the other"
    named = [row.metrics["rewards"] for row in rows if "rewards" in row.metrics]
    assert len(named) == len(trained)
    assert {name for one in named for name in one} <= {"right", "style", "length"}
    assert all({"right", "length"} <= set(one) for one in named)
    assert kept
    assert all(reward == pytest.approx(summed or 0.0) and count == 3 for reward, summed, count in kept)


def test_a_name_that_no_task_gives_is_refused_at_the_start(tmp_path: Path) -> None:
    suite = open_task_suite(suite_config(tmp_path), tmp_path)
    says = "no task has a reward of that name; the tasks give length, right, style"
    with pytest.raises(TaskError, match=says):
        require_here(suite, VerifiersSection(workers=1), "correct")
