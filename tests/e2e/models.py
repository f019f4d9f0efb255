"""Models made on the spot that get a part of a task right: what a swarm can teach, and what can be scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from node.tasks.encoded import EncodedTask
from node.tasks.port import Task
from node.tasks.text import TextCodec, write_character_tokenizer

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
    import transformers

    write_character_tokenizer(directory)
    encoded = EncodedTask(task=task, codec=TextCodec.load(directory))
    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(0)
    settings = {"head_dim": 16, "bos_token_id": None, "eos_token_id": 2, "tie_word_embeddings": True}
    policy = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**settings | config))
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
