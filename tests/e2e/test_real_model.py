"""Train a model of 50 million parameters as people bring them: sharded, tied, with a task from a file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from node.tasks.registry import open_task
from node.tasks.tokenized_task import EncodedTask
from node.tasks.tokenizer import TextCodec
from protocol.core.codec import unpack_tokens
from protocol.core.genesis import read_genesis
from protocol.work import open_lease, read_record
from tests.e2e.ledger_rules import Run, check_ledger, check_receipts
from tests.e2e.models import write_half_taught
from tests.e2e.programs import Machine, Swarm, wait_done

STEPS, HELD_OUT, MAX_NEW_TOKENS = 5, 48, 4
LETTERS = "abcdefghijklmnop"
TASK = "jsonl:words.jsonl:match=exact,held_out=0.2"


@pytest.fixture
def large(machine: Machine) -> Iterator[Swarm]:
    directory = machine.root / "swarm"
    directory.mkdir()
    words = ["".join(letters) for letters in product(LETTERS, repeat=2)]
    lines = [json.dumps({"prompt": word, "answer": word[::-1]}) for word in words]
    (directory / "words.jsonl").write_text("\n".join(lines))
    swarm = Swarm(machine=machine, directory=directory, model=directory / "model")
    write_half_taught(
        swarm.model, open_task(TASK, directory=directory), lr=1e-3, batch=32, max_shard_size="40MB", hidden_size=1024,
        num_hidden_layers=2, num_attention_heads=16, num_key_value_heads=8, head_dim=64, intermediate_size=2048,
        vocab_size=32_768, max_position_embeddings=64,
    )  # fmt: skip
    yield swarm
    machine.clear()
    shutil.rmtree(directory)  # gigabytes


@pytest.mark.slow
def test_fifty_million_parameters(large: Swarm) -> None:
    import torch
    import transformers

    assert len(list(large.model.glob("model-*.safetensors"))) >= 3
    large.configure(steps=STEPS, staleness=STEPS, held_out=HELD_OUT, task=TASK, learning_rate=1e-5)
    learner = large.learn()
    node = large.join("node", engine="transformers")
    wait_done(learner, node)
    check_ledger(large, Run(steps=STEPS, staleness=STEPS))
    check_receipts(large, node)

    directory = large.directory / "export"
    done = large.machine.call("export", large.config, directory)
    assert done.code == 0, done.err
    policy = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    assert 45e6 < policy.num_parameters() < 60e6
    assert policy.lm_head.weight is policy.model.embed_tokens.weight
    check_accuracy(large, policy, directory)
    check_logprobs(large)


def check_accuracy(swarm: Swarm, policy: Any, directory: Path) -> None:
    """Check that transformers alone, answering greedily, gets the learner's recorded score of the last version."""
    import torch

    task = open_task(TASK, directory=swarm.directory)
    encoded = EncodedTask(task=task, codec=TextCodec.load(directory))
    rewards = []
    for index in range(HELD_OUT):
        prompt = encoded.prompt(index, held_out=True)
        tokens = policy.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=MAX_NEW_TOKENS)[0]
        rewards.append(encoded.reward(index, tokens.tolist()[len(prompt) :], held_out=True))
    accuracy = sum(rewards) / len(rewards)
    ((greedy, prompts),) = swarm.rows("SELECT greedy, prompts FROM evaluations WHERE version = ?", STEPS)
    assert prompts == HELD_OUT
    assert 0 < accuracy < 1  # otherwise it would say little
    assert greedy == pytest.approx(accuracy, abs=1 / HELD_OUT)  # one near tie may fall otherwise in a batch


def check_logprobs(swarm: Swarm) -> None:
    """Check a node's log probabilities: transformers alone computes the same with the version that the record names."""
    import torch
    import transformers

    authority = read_genesis((swarm.state / "genesis").read_bytes())[1]
    (learner,) = (peer for (peer,) in swarm.rows("SELECT peer FROM peers WHERE role = 'learner'"))
    rows = swarm.rows(
        "SELECT r.version, r.envelope, l.envelope FROM records r JOIN leases l USING (lease)"
        " WHERE r.envelope IS NOT NULL AND l.envelope IS NOT NULL AND r.rule = 'admitted' ORDER BY r.version DESC"
    )
    assert rows
    version = rows[0][0]
    directory = swarm.directory / "behaviour"
    done = swarm.machine.call("export", swarm.config, directory, "--version", version)
    assert done.code == 0, done.err
    policy = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    for _, envelope, lease in [row for row in rows if row[0] == version][:16]:
        record = read_record(envelope, authority.swarm)
        prompt = unpack_tokens(open_lease(lease, authority.swarm, learner=learner).prompt)
        tokens = torch.tensor([[*prompt, *record.tokens]])
        with torch.no_grad():
            logits = policy(tokens).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(1, tokens[0, len(prompt) :, None])[:, 0]
        assert record.logprobs == pytest.approx(expected.tolist(), abs=1e-3)
