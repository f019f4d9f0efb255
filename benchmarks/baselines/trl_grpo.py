"""Run TRL's GRPOTrainer on the task of a swarm.toml, in one process: same model, prompts, rewards, hyperparameters.

    trl_grpo.py SWARM_TOML HYPERPARAMETERS OUT --threads 2 --every 20      train, leave snapshots
    trl_grpo.py SWARM_TOML HYPERPARAMETERS OUT --probe 1 2                 find the faster number of threads

HYPERPARAMETERS is what the learner gives its trainer, as JSON. The result is OUT/result.json, and the snapshots are
model directories OUT/<step>.

Invariants:

- Hyperparameters that TRL cannot express are refused.
- The clock is stopped while a snapshot is written.
- TRL evaluates, logs, saves and prints nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from datasets import Dataset  # type: ignore[import-untyped]
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from benchmarks.baselines.trl_plain import plain_config
from learner.trainer_api.presets import recipe_of
from learner.trainer_api.requests import Hyperparameters
from learner.training.optimizer import learning_rate_at
from node.config.loader import read_swarm_config
from node.config.swarm_config import SwarmConfig
from node.runtime.shutdown import STOP_ON_EOF
from node.tasks.task_suite import TaskSuite, open_task_suite

PROBE_STEPS = 30
PROBE_BLOCK = 5
"""Steps with one number of threads before the next has its turn: short compared with changes of other load."""


class Snapshots(TrainerCallback):  # type: ignore[misc]
    """Writes the policy every `every` steps, and notes the training time until then."""

    def __init__(self, out: Path, every: int, last: int) -> None:
        self.out, self.every, self.last = out, every, last
        self.taken: list[dict[str, float]] = []
        self.first_step_s = 0.0
        self._began = self._paused = 0.0

    def begin(self, model: Any) -> None:
        """Start the clock, after the snapshot of step 0."""
        self._began = time.perf_counter()
        self._take(0, model)

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        step = int(state.global_step)
        if step == 1:
            self.first_step_s = self._elapsed()
        if step % self.every == 0 or step == self.last:
            self._take(step, rest["model"])

    def _elapsed(self) -> float:
        return time.perf_counter() - self._began - self._paused

    def _take(self, step: int, model: Any) -> None:
        seconds, pause = self._elapsed(), time.perf_counter()
        model.save_pretrained(self.out / str(step))
        self.taken.append({"step": step, "seconds": seconds})
        self._paused += time.perf_counter() - pause


class ThreadProbe(TrainerCallback):  # type: ignore[misc]
    """Changes the number of threads every PROBE_BLOCK steps, and times each step."""

    def __init__(self, candidates: Sequence[int]) -> None:
        self.seconds: dict[int, list[float]] = {threads: [] for threads in candidates}
        self._threads, self._began = candidates[0], 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        candidates = list(self.seconds)
        self._threads = candidates[int(state.global_step) // PROBE_BLOCK % len(candidates)]
        torch.set_num_threads(self._threads)
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        # The first block also warms everything up.
        if state.global_step > PROBE_BLOCK:
            self.seconds[self._threads].append(time.perf_counter() - self._began)

    def medians(self) -> dict[int, float]:
        """Return seconds a step, by number of threads."""
        return {threads: statistics.median(seconds) for threads, seconds in self.seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("swarm", type=Path)
    parser.add_argument("hyperparameters", type=hyperparameters)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--probe", type=int, nargs="+")
    options = parser.parse_args()
    if os.environ.get(STOP_ON_EOF):
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    config = read_swarm_config(options.swarm)
    options.out.mkdir(parents=True)
    result = probe(config, options) if options.probe else train(config, options)
    (options.out / "result.json").write_text(json.dumps(result), encoding="utf-8")


def train(config: SwarmConfig, options: argparse.Namespace) -> dict[str, Any]:
    """Train all steps of `config` and describe the run: times in seconds, `began_at` as time.time()."""
    torch.set_num_threads(options.threads)
    snapshots = Snapshots(options.out, options.every, config.learn.steps)
    trainer = open_trainer(config, options, config.learn.steps, snapshots)
    began_at = time.time()
    snapshots.begin(trainer.model)
    trainer.train()
    return {"began_at": began_at, "first_step_s": snapshots.first_step_s, "snapshots": snapshots.taken}


def probe(config: SwarmConfig, options: argparse.Namespace) -> dict[str, Any]:
    """Train a little, and return the number of threads whose median step was the shortest."""
    callback = ThreadProbe(options.probe)
    open_trainer(config, options, PROBE_STEPS, callback).train()
    medians = callback.medians()
    return {"threads": min(medians, key=lambda threads: medians[threads]), "seconds_per_step": medians}


def open_trainer(config: SwarmConfig, options: argparse.Namespace, steps: int, callback: Any) -> Any:
    """Return a GRPOTrainer whose step is the learner's step, except that it generates its own rollouts first.

    The optimizer is the one TRL would choose (fused AdamW). It is passed from here only so that the learning rate can
    follow the learner's schedule.
    """
    directory = config.model.directory
    h: Hyperparameters = options.hyperparameters
    suite = open_task_suite(config, options.swarm.parent)
    tokenizer = AutoTokenizer.from_pretrained(directory, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=h.learning_rate, betas=h.betas, weight_decay=h.weight_decay, fused=True
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_at(step, h) / h.learning_rate)
    return GRPOTrainer(
        model=model,
        reward_funcs=reward_function(suite),
        args=arguments(config, h, options.out / "trl", steps),
        train_dataset=prompts(suite, tokenizer, steps * config.learn.prompts_per_step),
        processing_class=tokenizer,
        optimizers=(optimizer, schedule),
        callbacks=[callback],
    )


KNOWN = [Hyperparameters(objective=name, max_new_tokens=1) for name in ("dr_grpo", "topr")]
"""Objectives with a counterpart in `arguments`, for any bounds: the same on rollouts of the weights they train."""


def hyperparameters(text: str) -> Hyperparameters:
    """Read HYPERPARAMETERS. Exits if TRL has no such objective."""
    found = msgspec.json.decode(text, type=Hyperparameters)
    bounds = {"clip_low": found.clip_low, "clip_high": found.clip_high}
    if recipe_of(found) not in [recipe_of(msgspec.structs.replace(known, **bounds)) for known in KNOWN]:
        sys.exit(f"objective {found.objective!r} has no counterpart here; the baseline knows 'dr_grpo' and 'topr'")
    return found


def arguments(config: SwarmConfig, h: Hyperparameters, out: Path, steps: int) -> GRPOConfig:
    """Return the learner's hyperparameters in TRL's terms, without anything that costs time and teaches nothing.

    loss_type "dr_grpo" without scaled rewards is the learner's: advantages r - mean(r), token losses summed and
    divided by batch x max_completion_length. With one optimizer step a generation, TRL's ratio is 1 and its clipping
    has no effect.
    """
    bounds = recipe_of(h).bounds
    return plain_config(
        out,
        prompts=config.learn.prompts_per_step,
        group=config.learn.group_size,
        seed=config.learn.seed,
        max_steps=steps,
        max_completion_length=h.max_new_tokens,
        temperature=h.temperature,
        top_p=1.0,
        top_k=0,
        loss_type="dr_grpo",
        scale_rewards="none",
        epsilon=bounds.clip_low,
        epsilon_high=bounds.clip_high,
        mask_truncated_completions=False,
        max_grad_norm=h.grad_clip,
        gradient_checkpointing=h.gradient_checkpointing,
    )


def prompts(suite: TaskSuite, tokenizer: Any, count: int) -> Dataset:
    """Return the first `count` training prompts, in the order in which the learner leases them."""
    rows = []
    for _ in range(count):
        prompt = suite.next_prompt()
        index, name = suite.place(prompt.index)
        text = suite.tasks[name].task.problem(index).prompt
        if not isinstance(text, str) or tuple(tokenizer(text)["input_ids"]) != prompt.tokens:
            sys.exit(f"TRL would not read prompt {prompt.index} of {name!r} as the learner does")
        rows.append({"prompt": text, "index": prompt.index})
    return Dataset.from_list(rows)


def reward_function(suite: TaskSuite) -> Any:
    """Return the task's reward as TRL calls it: by completion ids, a stop id included."""

    def task_reward(*, completion_ids: list[list[int]], index: list[int], **_rest: Any) -> list[float]:
        return [suite.reward(i, tuple(tokens)) for i, tokens in zip(index, completion_ids, strict=True)]

    return task_reward


def _end_with_stdin() -> None:
    """Exit when stdin ends: the process that started us holds it, so we end if that dies. (`sys.stdin` has a lock that
    an exit would miss.)"""
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
