"""Run one cell of the study: a model taught by example, then trained on rollouts that are exactly S steps old.

The trainer is the product's own (`learner.training.train_state`). The engine stands for a swarm in which every rollout
arrives at the last moment: the batch of step t was drawn with the weights of step t - S, and those of the first S + 1
steps with the starting weights.

Invariants:

- A cell gives the same outcome on the same machine.
- Only the current policy is evaluated, since the accuracy of lagged rollouts hides a late collapse.
"""

from __future__ import annotations

import shutil
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.lagged.recipe import MODEL, Cell, Recipe
from benchmarks.lagged.sampling import Drawn, accuracy, draw
from benchmarks.lagged.tasks import open_lagged
from learner.trainer_api.requests import Hyperparameters
from learner.training.batches.sequences import rollout_batch, supervised_batch
from learner.training.model.export import export
from learner.training.model.loading import make_model
from learner.training.model.policy import Policy, load_policy
from learner.training.train_state import Diverged, Training
from node.tasks.tokenized_task import EncodedTask
from node.tasks.tokenizer import TextCodec, write_character_tokenizer

MAX_EXAMPLES = 4000
"""Steps by example after which a seed is given up: all of ours needed less than a quarter of that."""

EXAMPLES_FROM = 10_000_000
"""First problem that is taught by example; training never reaches it."""

KEPT = ("loss", "grad_norm", "learning_rate", "clip_share", "mismatch_kl", "entropy", "ess", "max_log_ratio")
"""The metrics of a step that a record keeps."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a cell.

    `curve`: (step, accuracy of the current policy, drawn at T = 1); `final` is the mean of its last values, `greedy`
    the greedy accuracy at the end. `steps`: metrics of every training step, for judging alarms.
    """

    curve: tuple[tuple[int, float], ...]
    final: float
    greedy: float
    steps: tuple[Mapping[str, float], ...]


def prepare(recipe: Recipe, seed: int, directory: Path, shape: Mapping[str, Any] = MODEL) -> Path:
    """Return the directory of the model of `shape` with which all cells of `seed` begin; make it if it is missing."""
    done = directory / "model"
    if done.exists():
        return done
    shutil.rmtree(directory, ignore_errors=True)
    base = directory / "untaught"
    base.mkdir(parents=True)
    write_character_tokenizer(base, *([recipe.alphabet] if recipe.alphabet else []))
    make_model(base, {key: value for key, value in shape.items() if key != "model_type"}, seed)
    policy = load_policy(base)
    encoded = EncodedTask(task=open_lagged(recipe.task, seed), codec=TextCodec.load(base))
    _teach(policy, encoded, recipe, seed)
    export(policy, done, "float32", 1 << 30)
    return done


def _teach(policy: Policy, encoded: EncodedTask, recipe: Recipe, seed: int) -> None:
    """Train on reference answers with wrong characters in them, by cross entropy, until enough draws are right."""
    training = Training(policy, Hyperparameters(max_new_tokens=recipe.max_new_tokens))
    chance = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    held_out = _held_out(encoded, 256)
    for step in range(MAX_EXAMPLES):
        first = EXAMPLES_FROM + step * recipe.example_batch
        arrays = _examples(encoded, range(first, first + recipe.example_batch), recipe.noise, chance)
        training.step_supervised(supervised_batch(arrays, policy.vocab_size), recipe.example_rate)
        if (step + 1) % recipe.look_every == 0 and _accuracy(
            policy, encoded, recipe, held_out, generator
        ) >= recipe.begin:
            return
    raise RuntimeError(f"{recipe.task}: seed {seed} did not reach {recipe.begin} in {MAX_EXAMPLES} steps by example")


def _examples(
    encoded: EncodedTask, indexes: range, noise: float, chance: np.random.Generator
) -> dict[str, NDArray[Any]]:
    rows = [(encoded.prompt(index), list(encoded.answer(index))) for index in indexes]
    letters = sorted({token for _, answer in rows for token in answer[:-1]})
    for _, answer in rows:
        for place in np.flatnonzero(chance.random(len(answer) - 1) < noise).tolist():
            answer[place] = int(chance.choice(letters))
    return {
        "tokens": np.concatenate([np.array([*prompt, *answer], np.int32) for prompt, answer in rows]),
        "lengths": np.array([len(prompt) + len(answer) for prompt, answer in rows], np.int32),
        "mask": np.concatenate([np.repeat([0, 1], [len(p), len(a)]).astype(np.uint8) for p, a in rows]),
    }


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """The draws for one training step: the problems' indexes, completions group by group, rewards."""

    indexes: tuple[int, ...]
    drawn: tuple[Drawn, ...]
    rewards: NDArray[np.float32]


class Laboratory:
    """Runs one cell."""

    def __init__(self, cell: Cell, recipe: Recipe, model: Path) -> None:
        self.cell, self.recipe = cell, recipe
        self.policy = load_policy(model)
        self.encoded = EncodedTask(task=open_lagged(recipe.task, cell.seed), codec=TextCodec.load(model))
        self.training = Training(self.policy, hyperparameters(cell, recipe))
        self._draws = torch.Generator().manual_seed(1000 + cell.seed)
        self._cursor = 0
        self._held_out = _held_out(self.encoded, recipe.held_out)

    def run(self) -> Outcome:
        """Train all steps of the recipe; a policy whose loss is no longer finite stays unchanged."""
        waiting = deque(self._draw() for _ in range(self.cell.staleness))
        curve, steps = [(0, self.evaluate())], []
        for step in range(1, self.recipe.steps + 1):
            waiting.append(self._draw())
            steps.append(self._train(waiting.popleft(), min(step - 1, self.cell.staleness)))
            if step % self.recipe.every == 0:
                curve.append((step, self.evaluate()))
        return Outcome(
            curve=tuple(curve),
            final=statistics.fmean(value for _, value in curve[-self.recipe.last :]),
            greedy=self.evaluate(greedy=True),
            steps=tuple(steps),
        )

    def train_all(self) -> None:
        """Train all steps of the recipe on rollouts of the weights that they train, and evaluate nothing."""
        for _ in range(self.recipe.steps):
            self.train_one()

    def train_one(self) -> None:
        """Take one step on rollouts of the weights that it trains."""
        self._train(self._draw(), 0)

    def evaluate(self, *, greedy: bool = False) -> float:
        """Return the accuracy of the current policy on held-out problems, with the same draws every time."""
        generator = None if greedy else torch.Generator().manual_seed(7)
        return _accuracy(self.policy, self.encoded, self.recipe, self._held_out, generator)

    def _draw(self) -> _Batch:
        recipe = self.recipe
        indexes = tuple(range(self._cursor, self._cursor + recipe.prompts))
        self._cursor += recipe.prompts
        drawn = draw(
            self.policy.model,
            [self.encoded.prompt(index) for index in indexes],
            recipe.group,
            max_new_tokens=recipe.max_new_tokens,
            stop_ids=sorted(self.encoded.codec.stop_ids),
            generator=self._draws,
        )
        rewards = [self.encoded.reward(indexes[n // recipe.group], one.tokens) for n, one in enumerate(drawn)]
        return _Batch(indexes=indexes, drawn=tuple(drawn), rewards=np.array(rewards, np.float32))

    def _train(self, batch: _Batch, lag: int) -> dict[str, float]:
        arrays = self._arrays(batch, lag)
        try:
            told, _ = self.training.step(rollout_batch(arrays, self.policy.vocab_size))
        except Diverged:
            told = {"diverged": 1.0}
        kept = {key: _short(told[key]) for key in (*KEPT, "diverged") if key in told}
        return {"reward": _short(float(batch.rewards.mean())), **kept}

    def _arrays(self, batch: _Batch, lag: int) -> dict[str, NDArray[Any]]:
        prompts = [self.encoded.prompt(index) for index in batch.indexes for _ in range(self.recipe.group)]
        answers = [one.tokens for one in batch.drawn]
        rows = list(zip(prompts, answers, strict=True))
        return {
            "tokens": np.concatenate([np.array([*prompt, *answer], np.int32) for prompt, answer in rows]),
            "lengths": np.array([len(prompt) + len(answer) for prompt, answer in rows], np.int32),
            "mask": np.concatenate([np.repeat([0, 1], [len(p), len(a)]).astype(np.uint8) for p, a in rows]),
            "behaviour_logprobs": np.concatenate([one.logprobs for one in batch.drawn]),
            "lags": np.full(sum(map(len, answers)), lag, np.int32),
            "rewards": batch.rewards,
            "group_sizes": np.full(self.recipe.prompts, self.recipe.group, np.int32),
            "origins": np.zeros(len(rows), np.uint8),
        }


def hyperparameters(cell: Cell, recipe: Recipe) -> Hyperparameters:
    """Return a cell's hyperparameters: the preset as it is, and the learning rate."""
    return Hyperparameters(
        objective=cell.objective,
        learning_rate=cell.learning_rate,
        decay_steps=0 if cell.constant else recipe.steps,
        max_new_tokens=recipe.max_new_tokens,
    )


def _held_out(encoded: EncodedTask, count: int) -> list[tuple[int, ...]]:
    return [encoded.prompt(index, held_out=True) for index in range(count)]


def _accuracy(
    policy: Policy,
    encoded: EncodedTask,
    recipe: Recipe,
    prompts: list[tuple[int, ...]],
    generator: torch.Generator | None,
) -> float:
    return accuracy(
        policy.model,
        prompts,
        partial(encoded.reward, held_out=True),
        max_new_tokens=recipe.max_new_tokens,
        stop_ids=sorted(encoded.codec.stop_ids),
        generator=generator,
    )


def _short(value: float) -> float:
    """Return the value with five digits, all that a record needs."""
    return float(f"{value:.5g}")
