"""Train on a mixture of the built-in tasks through a learner's loops: ten steps, by the same code for all.

The verifiers' processes, the sandbox and the ledger are real, the trainer and the peer are not.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

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
from node.tasks.task_suite import open_task_suite
from node.verifiers.dispatch import Verifiers
from tests.support.byte_mutations import write_byte_tokenizer
from tests.support.learner_fixture import FakePeer, Settings, open_learner

pytestmark = pytest.mark.usefixtures("mock_clock")

STEPS = 10
SPECS = {
    "legs": "reasoning_gym:leg_counting:max_animals=3",
    "sums": "reasoning_gym:chain_sum:max_terms=2",
    "code": "code:code.jsonl:bare=yes,held_out=0",
    "math": "jsonl:math.jsonl:match=math,held_out=0",
    "reverse": "reverse:letters=3",
}


async def test_ten_steps_of_a_mixture_of_all(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write_byte_tokenizer(tmp_path / "model")
    lines = {
        "code": {"prompt": "print 1", "tests": [{"output": "1"}]},
        "math": {"prompt": "1+1", "answer": "2"},
    }
    for name, line in lines.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
    config = SwarmConfig(
        swarm=SwarmSection(name="n"),
        model=ModelSection(directory=str(tmp_path / "model")),
        task=TaskSection(mixture=[MixtureTask(spec=spec, name=name) for name, spec in SPECS.items()], held_out=1),
        learn=LearnSection(steps=STEPS, max_new_tokens=4),
    )
    suite = open_task_suite(config, tmp_path)
    settings = Settings(steps=STEPS, prompts=2, group_size=2)
    async with open_learner(tmp_path, settings) as learner:
        verifiers = Verifiers(suite=suite, section=VerifiersSection(workers=1), events=learner.sessions.events)
        assert set(verifiers.pooled) == {"legs", "sums", "code", "math"}
        learner.scheduler.next_prompt = suite.next_prompt
        object.__setattr__(learner.intake, "ask", verifiers.replies)
        learner.training.ask_one = verifiers.ask_one
        async with verifiers.open():
            await learner.train(FakePeer())
        steps, judged = learner.logged("step"), learner.logged("delivery_judged")
        assert [step["step"] for step in steps] == list(range(1, STEPS + 1))
        assert learner.logged("reward_failed") == []
        leased = Counter(suite.place(int(prompt))[1] for prompt in learner.ledger.work.since(0, 0)[0])
        assert set(leased) == set(SPECS)
        assert all(one["admitted"] == 2 for one in judged)
