"""Make small models that already solve a part of a task, so that a swarm can teach them and their rewards differ."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from node.tasks.api.interface import Task, Turn, TurnTask
from node.tasks.tokenized_task import EncodedTask
from node.tasks.tokenizer import TextCodec, write_character_tokenizer

STEPS = 200
GOOD_ENOUGH = 0.35
"""Mean loss of an answer's tokens, in nats: neither hopeless nor learned, so rewards differ."""


def write_half_taught(
    directory: Path, task: Task, *, lr: float, batch: int, max_shard_size: str = "1GB", **config: Any
) -> None:
    """Write a Qwen3 with tied embeddings and its tokenizer, taught `task` until the loss is below `GOOD_ENOUGH`.

    All prompts of `task` must be of one length in tokens, and so must the answers.
    """
    import torch

    encoded, policy = _untaught(directory, task, config)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr)
    for step in range(STEPS):
        places = range(step * batch, (step + 1) * batch)
        tokens = torch.tensor([encoded.prompt(index) + encoded.answer(index) for index in places])
        labels = tokens.clone()
        labels[:, : len(encoded.prompt(0))] = -100
        loss = policy(tokens, labels=labels).loss
        if loss < GOOD_ENOUGH:
            policy.save_pretrained(directory, max_shard_size=max_shard_size)
            return
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    raise AssertionError(f"the model does not learn: its loss is {loss:.2f} after {STEPS} steps")


GUESSES = 4
RANDOM_DIGIT = 1.25
"""Mean loss of a digit and the stop id after it, in nats, where the digit is random: a bit over ln(10) / 2."""


def write_guesser(directory: Path, task: Task, *, lr: float, batch: int, **config: Any) -> None:
    """Write a model that plays `guess` in form but at random: any digit, then the stop id, in each of four turns.

    The task's answers between the turns are true, and the model is not taught to say them.
    """
    import torch

    assert isinstance(task, TurnTask)
    encoded, policy = _untaught(directory, task, config)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=lr)
    luck = random.Random(0)
    for step in range(STEPS):
        tokens, labels = [], []
        for index in range(step * batch, (step + 1) * batch):
            played, taught = list(encoded.prompt(index)), [-100] * len(encoded.prompt(index))
            problem, turns = task.problem(index), list[Turn]()
            while len(turns) < GUESSES:
                said = str(luck.choice([digit for digit in range(10) if str(digit) != problem.answer]))
                played += encoded.codec.encode_answer(said)
                taught += encoded.codec.encode_answer(said)
                answered = task.answer_turn(problem, turns[: GUESSES - 2], said)
                assert isinstance(answered, str)
                turns.append(Turn(said=said, answered=answered))
                if len(turns) < GUESSES:
                    played += encoded.codec.encode_turn(problem, answered)
                    taught.append(-100)
            tokens.append(played)
            labels.append(taught)
        loss = policy(torch.tensor(tokens), labels=torch.tensor(labels)).loss
        if loss < RANDOM_DIGIT:
            policy.save_pretrained(directory)
            return
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    raise AssertionError(f"the model does not learn the form: its loss is {loss:.2f} after {STEPS} steps")


def _untaught(directory: Path, task: Task, config: Mapping[str, Any]) -> tuple[EncodedTask, Any]:
    """Return the task in the tokens of a tokenizer that is written to `directory`, and a Qwen3 of random weights. The
    model is a mixture of experts where `config` has some.
    """
    import torch
    import transformers

    write_character_tokenizer(directory)
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    settings = {"head_dim": 16, "bos_token_id": None, "eos_token_id": 2, "tie_word_embeddings": True, **config}
    if "num_experts" in config:
        policy: Any = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**settings))
    else:
        policy = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**settings))
    return EncodedTask(task=task, codec=TextCodec.load(directory)), policy
