"""Compare supervised steps with TRL's own `SFTTrainer` on the same examples, to rounding in float32.

The tests compare the loss, the gradient of every weight, and the weights after a few steps. Our examples are packed,
a group in one row or alone; TRL's are padded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

from learner.training.batches.sequences import supervised_batch
from learner.training.model.loading import make_model
from learner.training.model.policy import Policy, load_policy
from learner.training.server import Trainer
from node.commands.warmup.schedule import BETAS, Schedule
from node.learner_role.training.supervised import Example, arrays_of, example_of
from node.tasks.tokenizer import write_character_tokenizer
from protocol.core.pipe import Arrays

CONFIG: dict[str, Any] = {
    **{"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4},
    **{"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "initializer_range": 0.2},
}
STEPS, RATE = 3, 1e-3
IGNORED = -100


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "qwen3"
    make_model(place, CONFIG, 3)
    write_character_tokenizer(place)
    return place


def examples() -> list[Example]:
    """Return four prompts with two completions each, of uneven lengths, and a conversation of two turns."""
    generator = np.random.default_rng(5)
    drawn = lambda length: tuple(generator.integers(4, 64, length).tolist())  # noqa: E731
    found = []
    for length in (3, 9, 5, 12):
        prompt = drawn(length)
        found += [example_of([(prompt, False), ((*drawn(answer), 2), True)]) for answer in (2, 7)]
    parts = [(drawn(4), False), ((*drawn(3), 2), True), (drawn(5), False), ((*drawn(6), 2), True)]
    return [*found, example_of(parts)]


def gradients(policy: Policy, arrays: Arrays, budget: int) -> tuple[float, dict[str, Tensor]]:
    """Return the loss and gradients of one step, in microbatches of at most `budget` positions."""
    from learner.trainer_api.requests import Hyperparameters
    from learner.training.train_state import Training

    training = Training(policy, Hyperparameters(max_new_tokens=8, max_tokens_per_microbatch=budget))
    batch = supervised_batch(arrays, policy.vocab_size)
    total = int(batch.targets.sum())
    loss = 0.0
    for part in training.parts(batch, np.ones(len(batch), np.bool_)):
        share = -policy.score(part, 1.0).logprobs.sum() / total
        share.backward()  # type: ignore[no-untyped-call]
        loss += share.item()
    return loss, {name: one.grad.clone() for name, one in policy.parameters if one.grad is not None}


@pytest.mark.parametrize("end_to_end", [False, True], ids=["in rows", "end to end"])
@pytest.mark.parametrize("budget", [4096, 40, 1])
def test_packed_is_unpacked_and_both_are_plain_cross_entropy(directory: Path, budget: int, end_to_end: bool) -> None:
    """The reference is transformers' own loss of each example alone, weighted by its targets. The layouts are those of
    a processor and of a GPU.
    """
    policy, many = load_policy(directory), examples()
    assert not end_to_end or policy.lay_end_to_end()
    loss, found = gradients(policy, arrays_of(many), budget)
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    total, expected = sum(one.targets for one in many), 0.0
    for one in many:
        tokens = torch.from_numpy(one.tokens.astype(np.int64))[None]
        labels = torch.where(torch.from_numpy(one.learnt.astype(bool))[None], tokens, IGNORED)
        share = model(input_ids=tokens, labels=labels).loss * one.targets / total
        share.backward()
        expected += share.item()
    assert loss == pytest.approx(expected, rel=1e-5)
    theirs = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    assert found.keys() == theirs.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("budget", [4096, 40])
def test_steps_are_those_of_trl(directory: Path, tmp_path: Path, budget: int) -> None:
    many = examples()
    rows = [
        {"input_ids": one.tokens.tolist(), "completion_mask": one.learnt.tolist(), "labels": _labels(one)}
        for one in many
    ]
    config = SFTConfig(
        output_dir=str(tmp_path / "trl"),
        per_device_train_batch_size=len(many),
        max_steps=STEPS,
        learning_rate=RATE,
        max_length=None,
        completion_only_loss=True,
        report_to="none",
        save_strategy="no",
        logging_steps=1,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        remove_unused_columns=False,
    )
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(directory)
    theirs = SFTTrainer(model=model, args=config, train_dataset=Dataset.from_list(rows), processing_class=tokenizer)
    theirs.train()
    losses = [entry["loss"] for entry in theirs.state.log_history if "loss" in entry]

    trainer = Trainer()
    hyperparameters = {
        "learning_rate": RATE,
        "betas": list(BETAS),
        "max_new_tokens": 8,
        "max_tokens_per_microbatch": budget,
    }
    ask(trainer, "load", directory=str(directory), hyperparameters=hyperparameters)
    schedule, ours = Schedule(rate=RATE, rise=0, total=STEPS, decay="linear"), []
    for step in range(STEPS):
        reply, _ = trainer.answer(
            {"id": 1, "op": "supervised", "learning_rate": RATE * schedule.at(step)}, arrays_of(many)
        )
        assert reply["ok"], reply
        ours.append(reply["loss"])
    assert ours == pytest.approx(losses, rel=1e-3)
    assert trainer._training is not None
    weights = dict(trainer._training.policy.parameters)
    for name, one in model.named_parameters():
        torch.testing.assert_close(weights[name].detach(), one.detach(), rtol=1e-3, atol=2e-5, msg=name)


def _labels(one: Example) -> list[int]:
    return [
        token if learnt else IGNORED for token, learnt in zip(one.tokens.tolist(), one.learnt.tolist(), strict=True)
    ]


def ask(trainer: Trainer, op: str, **fields: Any) -> None:
    reply, _ = trainer.answer({"id": 7, "op": op, **fields}, {})
    assert reply["ok"], reply
