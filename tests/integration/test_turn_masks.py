"""Train on episodes of several turns: the policy's own tokens are trained on, the answers between are only read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from learner.training.server import Trainer
from protocol.core.pipe import Arrays
from tests.learner.training.test_server import CONFIG, ok

BUDGET = 4
"""Tokens of one turn, by which "per_constant" divides. Episodes are longer."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "qwen3"
    ok(Trainer(), "make_model", directory=str(directory), config=CONFIG)
    return directory


def episodes(seed: int) -> Arrays:
    """Return two groups of four episodes of one to three turns, each of one to three tokens, with two answer tokens
    between.
    """
    generator = np.random.default_rng(seed)
    sequences: list[Any] = []
    masks: list[list[int]] = []
    for number, turns in enumerate((1, 2, 3, 2, 2, 1, 3, 3)):
        said = [[1] * int(generator.integers(1, 4)) for _ in range(turns)]
        masks.append([0] * 4 + [of for each in said for of in (*each, 0, 0)][:-2])
        sequences.append(generator.integers(0, 40, len(masks[-1])))
        sequences[-1][:4] = sequences[number // 4 * 4][:4]
    tokens = sum(map(sum, masks))
    return {
        "tokens": np.concatenate(sequences).astype(np.int32),
        "lengths": np.array([len(mask) for mask in masks], np.int32),
        "mask": np.concatenate(masks).astype(np.uint8),
        "behaviour_logprobs": (np.log(1 / 40) + 0.3 * generator.normal(size=tokens)).astype(np.float32),
        "lags": generator.integers(0, 3, tokens).astype(np.int32),
        "rewards": generator.normal(size=8).astype(np.float32),
        "group_sizes": np.array([4, 4], np.int32),
        "origins": np.zeros(8, np.uint8),
    }


def literal(directory: Path, arrays: Arrays, objective: str, *, read_too: bool = False) -> tuple[float, float]:
    """Return loss and gradient norm of one step as the papers write it, token by token; with `read_too`, of the answers
    as well.
    """
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    ends = np.cumsum(arrays["lengths"])[:-1]
    parts = zip(np.split(arrays["tokens"], ends), np.split(arrays["mask"], ends), strict=True)
    behaviour = iter(arrays["behaviour_logprobs"].tolist())
    advantages = []
    for rewards in np.split(arrays["rewards"].astype(np.float64), [4]):
        spread = rewards.std(ddof=1) + 1e-4 if objective == "grpo" else 1.0
        advantages += ((rewards - rewards.mean()) / spread).tolist()
    loss = torch.zeros(())
    for (tokens, mask), advantage in zip(parts, advantages, strict=True):
        logprobs = torch.log_softmax(model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0], dim=-1)
        divisor = 8 * (int(mask.sum()) if objective == "grpo" else BUDGET)
        for place in range(4, len(tokens)):
            if not mask[place] and not read_too:
                continue
            now = logprobs[place - 1, int(tokens[place])]
            ratio = torch.exp(now - (next(behaviour) if mask[place] else now.detach()))
            clipped = torch.clamp(ratio, 0.8, 1.2)
            loss = loss - torch.minimum(ratio * advantage, clipped * advantage) / divisor
    loss.backward()
    return loss.item(), torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()


@pytest.mark.parametrize("objective", ["grpo", "dr_grpo"])
@pytest.mark.parametrize("budget", [1, 40, 10_000])
def test_a_step_on_episodes_is_a_literal_one_on_what_was_said(model: Path, objective: str, budget: int) -> None:
    trainer, arrays = Trainer(), episodes(0)
    settings = {
        "learning_rate": 1e-2, "max_new_tokens": BUDGET, "max_tokens_per_microbatch": budget, "objective": objective
    }  # fmt: skip
    ok(trainer, "load", directory=str(model), hyperparameters=settings)
    reply = ok(trainer, "step", arrays)
    loss, norm = literal(model, arrays, objective)
    assert reply["loss"] == pytest.approx(loss, abs=1e-6)
    assert reply["grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert reply["tokens"] == arrays["mask"].sum()
    _, wrong = literal(model, arrays, objective, read_too=True)
    assert abs(wrong - norm) > 0.01 * norm, "training on the answers as well must change the norm"


def test_what_was_read_has_no_gradient_of_its_own_and_is_read_all_the_same(model: Path) -> None:
    """The mask alone decides: a warm start trains on nothing but the policy's tokens, given the answers."""
    arrays = {name: episodes(1)[name] for name in ("tokens", "lengths", "mask")}
    replies = []
    for read in (0, 1):
        changed = arrays["tokens"].copy()
        answers = np.flatnonzero(arrays["mask"] == 0)
        changed[answers[-1]] = (changed[answers[-1]] + read) % 40
        trainer = Trainer()
        ok(trainer, "load", directory=str(model), hyperparameters={"learning_rate": 1e-2, "max_new_tokens": BUDGET})
        replies.append(ok(trainer, "supervised", arrays | {"tokens": changed}, learning_rate=1e-3))
    assert replies[0]["tokens"] == replies[1]["tokens"] == arrays["mask"].sum()
    assert replies[0]["loss"] != replies[1]["loss"], "the tokens after an answer must depend on it"
