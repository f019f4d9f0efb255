"""Train on environments of other packages for twenty steps, with two honest nodes and audits.

Slow, and skipped where the packages are missing: `make test-adapters` installs them in an environment of its own.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from node.tasks.api.interface import Answer, ChatMessage, Problem
from node.tasks.registry import open_task
from node.tasks.tokenized_task import EncodedTask
from node.tasks.tokenizer import TextCodec
from tests.e2e.ledger_rules import HONEST, Run, check_admitted, check_episodes, check_nothing_lost, check_versions
from tests.e2e.programs import Machine, Swarm, wait_done
from tests.support.chat_templates import QWEN3, write_family_model
from tests.support.paths import ROOT

STEPS = 20

TAUGHT = 250
"""Episodes that a model is taught first: enough for calls that can be parsed, and too few for correct ones."""

EXAMPLES = ROOT / "docs" / "examples" / "tasks"

Play = Callable[[Problem, random.Random], list[tuple[str, Answer | None]]]
"""Returns what a policy might say in a problem, turn by turn, each with the answer it gets."""


def write_caller(directory: Path, spec: str, beside: Path, play: Play) -> Path:
    """Write a Qwen3 of some 100 k parameters that was taught to talk as `play` does, more or less."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    write_family_model(directory, QWEN3)
    codec = TextCodec.load(directory)
    encoded = EncodedTask(task=open_task(spec, directory=beside), codec=codec)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=264, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, intermediate_size=128, max_position_embeddings=4096, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=codec.eos_id, pad_token_id=codec.eos_id,
    )  # fmt: skip
    policy: Any = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3)
    dice = random.Random(0)
    for index in range(TAUGHT):
        problem = encoded.task.problem(index)
        tokens, labels = list(encoded.prompt(index)), [-100] * len(encoded.prompt(index))
        for said, answered in play(problem, dice):
            tokens += codec.encode_answer(said)
            labels += codec.encode_answer(said)
            if answered is not None:
                between = codec.encode_turn(problem, answered)
                tokens += between
                labels += [-100] * len(between)
        found = policy(torch.tensor([tokens]), labels=torch.tensor([labels])).loss
        found.backward()
        optimizer.step()
        optimizer.zero_grad()
    policy.save_pretrained(directory)
    return directory


def configure(swarm: Swarm, spec: str, *, max_new_tokens: int) -> None:
    """Write the configuration of a run with audits, whose turns have room for a call."""
    swarm.configure(steps=STEPS, task=spec, audits=True, lease_s=120.0, held_out=4)
    text = swarm.config.read_text(encoding="utf-8")
    text = text.replace("max_new_tokens = 4", f"max_new_tokens = {max_new_tokens}\nmax_turns = 4")
    swarm.config.write_text(text.replace("every_versions = 3", "every_versions = 10"), encoding="utf-8")


def check_honest(swarm: Swarm) -> Counter[str]:
    """Check that twenty steps were taken, and that no record of an honest node was rejected. Return the verdicts by
    rule.
    """
    run = Run(steps=STEPS)
    assert swarm.steps_taken == STEPS
    verdicts = Counter(str(rule) for (rule,) in swarm.rows("SELECT rule FROM records"))
    assert verdicts.keys() <= HONEST, verdicts
    assert check_episodes(swarm, run) > 0, "no episode had a second turn"
    check_admitted(swarm, run)
    check_nothing_lost(swarm)
    check_versions(swarm)
    return verdicts


def shop(problem: Problem, dice: random.Random) -> list[tuple[str, Answer | None]]:
    """Ask what some fruit costs, read the answer, and say some number."""
    fruit = dice.choice(["apple", "pear", "plum", "fig"])
    call = f'<tool_call>\n{{"name": "price", "arguments": {{"fruit": "{fruit}"}}}}\n</tool_call>'
    read = (ChatMessage(role="tool", content=str(dice.randint(2, 7)), name="price", tool_call_id="abcdefghi"),)
    return [(call, read), (str(dice.randint(2, 30)), None)]


@pytest.mark.slow
def test_a_verifiers_environment_with_a_tool(machine: Machine) -> None:
    pytest.importorskip("verifiers", reason="verifiers is not installed; `make test-adapters` installs it")
    spec = "verifiers:shop_env"
    model = write_caller(machine.root / "model", spec, EXAMPLES, shop)
    swarm = Swarm(machine=machine, directory=machine.root / "swarm", model=model)
    configure(swarm, spec, max_new_tokens=80)
    shutil.copy(EXAMPLES / "shop_env.py", swarm.directory)
    learner = swarm.learn()
    nodes = swarm.join_all(learner, ["one"], ["two"], engine="transformers")
    wait_done(learner, *nodes)
    check_honest(swarm)
    assert learner.events("reward_failed") == []
    assert learner.events("audited"), "there were audits"
