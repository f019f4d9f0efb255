"""Run TRL's GRPOTrainer on a recipe of the study of staleness: its own generation, our model, prompts and rewards.

    trl_reversal.py MODEL OUT --seed 0 --rate 5e-4

The result is OUT, JSON: accuracy at the end.

Invariants:

- The starting model, the prompts in their order, the rewards, batch, objective and learning rate are those of
  `benchmarks/lagged/` at S = 0 with preset "grpo" and a constant rate.
- The policy is evaluated by the same code on the same prompts.
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset  # type: ignore[import-untyped]
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.baselines.trl_plain import plain_config
from benchmarks.lagged.recipe import RECIPES, Recipe
from benchmarks.lagged.sampling import accuracy
from benchmarks.lagged.tasks import open_lagged
from learner.trainer_api.requests import Hyperparameters
from node.tasks.tokenized_task import EncodedTask
from node.tasks.tokenizer import TextCodec


def train(options: argparse.Namespace, recipe: Recipe) -> float:
    """Train all steps and return the accuracy at the end."""
    torch.set_num_threads(1)
    encoded = EncodedTask(task=open_lagged(recipe.task, options.seed), codec=TextCodec.load(options.model))
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    rows = [
        {"prompt": encoded.task.problem(index).prompt, "index": index} for index in range(recipe.steps * recipe.prompts)
    ]

    def rewards(*, completion_ids: list[list[int]], index: list[int], **_rest: Any) -> list[float]:
        return [encoded.reward(number, tokens) for number, tokens in zip(index, completion_ids, strict=True)]

    h = Hyperparameters(max_new_tokens=recipe.max_new_tokens)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, betas=h.betas, weight_decay=0.0, fused=True)
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=rewards,
        args=arguments(options, recipe, h),
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(options.model, padding_side="left"),
        optimizers=(optimizer, None),
    )
    trainer.train()
    model.eval()
    return accuracy(
        model,
        [encoded.prompt(index, held_out=True) for index in range(recipe.held_out)],
        partial(encoded.reward, held_out=True),
        max_new_tokens=recipe.max_new_tokens,
        stop_ids=sorted(encoded.codec.stop_ids),
        generator=torch.Generator().manual_seed(7),
    )


def arguments(options: argparse.Namespace, recipe: Recipe, h: Hyperparameters) -> GRPOConfig:
    """Return the recipe in TRL's terms."""
    return plain_config(
        options.out.with_suffix(".trl"),
        seed=options.seed,
        max_steps=recipe.steps,
        prompts=recipe.prompts,
        group=recipe.group,
        max_completion_length=recipe.max_new_tokens,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        loss_type="grpo",
        epsilon=0.2,
        learning_rate=options.rate,
        lr_scheduler_type="constant",
        max_grad_norm=h.grad_clip,
        gradient_checkpointing=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--recipe", choices=sorted(RECIPES), default="reversal")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rate", type=float, required=True)
    options = parser.parse_args()
    options.out.write_text(json.dumps({"final": train(options, RECIPES[options.recipe])}), encoding="utf-8")


if __name__ == "__main__":
    main()
