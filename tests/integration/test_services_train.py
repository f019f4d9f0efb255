"""Train on rewards of a service through a learner's loops: five steps, an outage, and no wrong reward."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from node.config.swarm_config import (
    LearnSection,
    ModelSection,
    RewardServiceSection,
    SwarmConfig,
    SwarmSection,
    TaskSection,
    VerifiersSection,
)
from node.tasks.task_suite import open_task_suite
from node.verifiers.dispatch import Verifiers, require_here
from tests.support.byte_mutations import write_byte_tokenizer
from tests.support.learner_fixture import FakePeer, Settings, open_learner
from tests.support.reward_servers import Heard, Reply, rewards, serving

pytestmark = pytest.mark.usefixtures("mock_clock")

STEPS = 5


def answer(number: int, heard: Heard) -> Any:
    """Fail every third request, and give no reward for every fifth completion."""
    if number % 3 == 2:
        return Reply(status=500, value="out of memory")
    return rewards(*(None if len(item["completion"]) % 5 == 4 else 0.25 for item in heard.value["items"]))


async def test_five_steps_with_a_service_that_fails_now_and_then(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write_byte_tokenizer(tmp_path / "model")
    rows = [{"prompt": f"say {number}"} for number in range(20)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with serving(answer) as server:
        config = SwarmConfig(
            swarm=SwarmSection(name="n"),
            model=ModelSection(directory=str(tmp_path / "model")),
            task=TaskSection(spec="jsonl:t.jsonl:match=service,held_out=0.1", held_out=1),
            reward_service=RewardServiceSection(url=server.url),
            learn=LearnSection(steps=STEPS, max_new_tokens=4),
        )
        suite = open_task_suite(config, tmp_path)
        require_here(suite, VerifiersSection(workers=1))
        settings = Settings(steps=STEPS, prompts=2, group_size=2)
        async with open_learner(tmp_path, settings) as learner:
            events = learner.sessions.events
            verifiers = Verifiers(suite=suite, section=VerifiersSection(workers=1), events=events)
            assert verifiers.pooled == ["jsonl"]
            learner.scheduler.next_prompt = suite.next_prompt
            object.__setattr__(learner.intake, "ask", verifiers.replies)
            learner.training.ask_one = verifiers.ask_one
            async with verifiers.open():
                await learner.train(FakePeer())
            assert [step["step"] for step in learner.logged("step")] == list(range(1, STEPS + 1))
            assert learner.logged("reward_failed") == []
            worth = {row.reward for row in learner.ledger.work.unconsumed()} | {0.25}
            assert worth == {0.25}
        assert len(server.heard) > STEPS
