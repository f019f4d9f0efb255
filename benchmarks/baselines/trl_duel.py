"""Run TRL's GRPOTrainer and ours in one process, step by step on the same batches, one after the other.

    trl_duel.py MODEL OUT --prompts 16 --group 8 --prompt-tokens 12 --max-new-tokens 8 --steps 30

The result is OUT, JSON: seconds of every step of each, and the distance of their weights at the end.

Invariants:

- Both begin with the same weights and get the very same prompts, completions and rewards, drawn before the clock runs.
- Both clocks count from batch to updated weights; TRL's own generation is a lookup.
- The two take turns, so that other load on the machine slows both.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from datasets import Dataset  # type: ignore[import-untyped]
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.baselines.trl_plain import plain_config
from learner.trainer_api.requests import Hyperparameters
from learner.training.server import Trainer

RATE = 1e-6
"""So low that the weights of both stay close: only time is compared."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Rollouts of one step, group by group."""

    prompts: list[list[int]]
    completions: list[list[int]]
    rewards: list[float]


class Turns(TrainerCallback):  # type: ignore[misc]
    """Times TRL's step, then lets ours take the same one and times that."""

    def __init__(self, ours: Ours, batches: Sequence[Batch]) -> None:
        self.ours, self.batches = ours, batches
        self.theirs_s: list[float] = []
        self.ours_s: list[float] = []
        self._began = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        self.theirs_s.append(time.perf_counter() - self._began)
        batch = self.batches[int(state.global_step) - 1]
        behaviour = self.ours.engine_logprobs(batch)
        began = time.perf_counter()
        self.ours.step(batch, behaviour)
        self.ours_s.append(time.perf_counter() - began)


class Ours:
    """Our trainer, called as its node calls it, without the pipe."""

    def __init__(self, model: Path, group: int, hyperparameters: Hyperparameters) -> None:
        self.group = group
        self._trainer = Trainer()
        fields = {"directory": str(model), "hyperparameters": msgspec.to_builtins(hyperparameters)}
        self._ask({"op": "load", "threads": torch.get_num_threads(), **fields}, {})

    def engine_logprobs(self, batch: Batch) -> NDArray[np.float32]:
        """Return what an engine with these weights would report with the completions; TRL computes its own."""
        return self._ask({"op": "logprobs"}, _sequences(batch))["logprobs"]

    def step(self, batch: Batch, behaviour: NDArray[np.float32]) -> None:
        groups = len(batch.prompts) // self.group
        self._ask(
            {"op": "step"},
            {
                **_sequences(batch),
                "behaviour_logprobs": behaviour,
                "lags": np.zeros(len(behaviour), np.int32),
                "rewards": np.array(batch.rewards, np.float32),
                "group_sizes": np.full(groups, self.group, np.int32),
                "origins": np.zeros(len(batch.prompts), np.uint8),
            },
        )

    @torch.no_grad()
    def distance(self, start: Path, model: Any) -> float:
        """Return the distance of our weights from those of `model`, over the distance of these from the start.

        It is not 0: AdamW makes full steps of gradients that are only rounding.
        """
        with tempfile.TemporaryDirectory() as scratch:
            self._ask({"op": "export", "directory": f"{scratch}/ours", "dtype": "float32"}, {})
            ours, began = (_flat(AutoModelForCausalLM.from_pretrained(path)) for path in (f"{scratch}/ours", start))
        theirs = _flat(model)
        return float((ours - theirs).norm() / (theirs - began).norm())

    def _ask(self, header: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        reply, found = self._trainer.answer({"id": 0, **header}, arrays)
        if not reply["ok"]:
            raise RuntimeError(reply["error"])
        return dict(found)


def _sequences(batch: Batch) -> dict[str, NDArray[Any]]:
    rows = list(zip(batch.prompts, batch.completions, strict=True))
    return {
        "tokens": np.concatenate([np.array([*prompt, *answer], np.int32) for prompt, answer in rows]),
        "lengths": np.array([len(prompt) + len(answer) for prompt, answer in rows], np.int32),
        "mask": np.concatenate([np.repeat([0, 1], [len(p), len(a)]).astype(np.uint8) for p, a in rows]),
    }


def _flat(model: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().float().flatten() for parameter in model.parameters()])


def draw_batches(options: argparse.Namespace, vocab: range) -> list[Batch]:
    """Return batches: prompts of one length, completions of half the budget to all of it, rewards of a fair coin."""
    chance = np.random.default_rng(options.seed)
    batches = []
    for _ in range(options.steps):
        prompts = chance.integers(vocab.start, vocab.stop, (options.prompts, options.prompt_tokens)).tolist()
        rows = options.prompts * options.group
        lengths = chance.integers(options.max_new_tokens // 2, options.max_new_tokens + 1, rows)
        completions = [chance.integers(vocab.start, vocab.stop, length).tolist() for length in lengths]
        rewards = chance.integers(0, 2, rows).astype(float).tolist()
        repeated = [prompt for prompt in prompts for _ in range(options.group)]
        batches.append(Batch(prompts=repeated, completions=completions, rewards=rewards))
    return batches


def duel(options: argparse.Namespace) -> dict[str, Any]:
    """Let both take all steps; return the result."""
    torch.set_num_threads(options.threads)
    tokenizer = AutoTokenizer.from_pretrained(options.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.float32)
    batches = draw_batches(options, range(4, int(model.config.vocab_size)))
    hyperparameters = Hyperparameters(objective="grpo", learning_rate=RATE, max_new_tokens=options.max_new_tokens)
    turns = Turns(Ours(options.model, options.group, hyperparameters), batches)
    waiting = iter(batches)
    current: list[Batch] = []

    def rollouts(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        current[:] = [next(waiting)]
        batch = current[0]
        return {
            "prompt_ids": batch.prompts,
            "completion_ids": batch.completions,
            "logprobs": [[-1.0] * len(completion) for completion in batch.completions],
        }

    def rewards(**_rest: Any) -> list[float]:
        return current[0].rewards

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=rewards,
        args=arguments(options, hyperparameters),
        train_dataset=Dataset.from_list([{"prompt": "a"}] * (options.prompts * options.steps)),
        processing_class=tokenizer,
        rollout_func=rollouts,
        optimizers=(
            torch.optim.AdamW(model.parameters(), lr=RATE, betas=hyperparameters.betas, weight_decay=0.0, fused=True),
            None,  # TRL makes the constant schedule itself
        ),
        callbacks=[turns],
    )
    trainer.train()
    apart = turns.ours.distance(options.model, trainer.model)
    return {"theirs_s": turns.theirs_s, "ours_s": turns.ours_s, "apart": apart}


def arguments(options: argparse.Namespace, h: Hyperparameters) -> GRPOConfig:
    """Return our preset "grpo" in TRL's terms, without anything that costs time and teaches nothing."""
    return plain_config(
        options.out.with_suffix(".trl"),
        max_steps=options.steps,
        prompts=options.prompts,
        group=options.group,
        max_completion_length=options.max_new_tokens,
        temperature=1.0,
        loss_type="grpo",
        epsilon=0.2,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=h.grad_clip,
        gradient_checkpointing=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    for name in ("prompts", "group", "prompt-tokens", "max-new-tokens", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.write_text(json.dumps(duel(options)), encoding="utf-8")


if __name__ == "__main__":
    main()
