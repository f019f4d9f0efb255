"""Claim "distillation": learning from a teacher's probabilities takes a third of GRPO's tokens, or less.

A teacher of 50 M parameters is taught string reversal by example until nearly all its draws are right. Students of 3 M,
one a seed, are taught just enough to begin with. From the same start, the product's own trainer trains a student twice,
on rollouts of the weights that it trains: with GRPO on rewards, and with the objective "distill" on the teacher's log
probabilities. Each objective is tried in every way of WAYS, and its best counts. A group of two is enough for a
teacher, while GRPO compares the completions of larger ones, so each has its own batches. Both see the same problems in
the same order, and only tokens that were generated and trained on count.

Bar: tokens_of_grpo, the tokens that distillation needs for an accuracy of 0.8 (held-out problems, drawn at T = 1) over
those of GRPO, the median over the seeds: at most a third. Accuracy is measured every 500 tokens, later every 4 % of the
tokens so far, and the tokens to 0.8 are interpolated between two measurements.

Run it with `make bench-distillation`. Finished runs are stored in --record, so that one seed can be run at a time
(--reps 1 --seed 2). `--quick` takes small models, one seed and one way, to check that it works, and stores nothing.
"""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from benchmarks.harness import (
    ROOT,
    Bar,
    add_row,
    arguments,
    conclude,
    crossing,
    main,
    number,
    read_rows,
    say,
    scratch,
    table,
)
from benchmarks.lagged.laboratory import Laboratory, prepare
from benchmarks.lagged.recipe import Cell, Recipe
from node.learner_role.training.warm_start import TINY_QWEN3

RECORDED = ROOT / "benchmarks" / "recorded" / "distillation.jsonl"
THIRD = 1 / 3
TARGET = 0.8

STUDENT: Mapping[str, Any] = MappingProxyType(
    dict(TINY_QWEN3)
    | {"hidden_size": 256, "num_hidden_layers": 4, "head_dim": 64, "intermediate_size": 768, "initializer_range": 0.05}
)
"""3.2 M parameters."""

TEACHER: Mapping[str, Any] = MappingProxyType(
    dict(TINY_QWEN3)
    | {
        "hidden_size": 1024,
        "num_hidden_layers": 3,
        "head_dim": 256,
        "intermediate_size": 4352,
        "initializer_range": 0.02,
    }
)
"""50 M parameters, wide and shallow: processors multiply large matrices best."""

RECIPE = Recipe(
    task="reverse:letters=6", max_new_tokens=8, noise=0.4, begin=0.02, example_rate=1e-3, look_every=2, held_out=512
)
"""The student's start: few of its completions are right, as for a model that has not been trained on its task."""

TEACHING = replace(RECIPE, noise=0.0, begin=0.95, example_rate=3e-4, look_every=10)
"""The teacher's recipe: clean examples, until it knows the task."""

QUICK_RATE = 2e-3
"""Learning rate of examples for small models, which learn faster."""

MAX_TOKENS = 400_000
"""Number of tokens after which a run is given up."""

TOKENS_BETWEEN, SHARE_BETWEEN = 500, 0.04
"""Tokens between two evaluations, or this share of the tokens so far if that is more."""


@dataclass(frozen=True, kw_only=True, order=True)
class Way:
    """How one objective is trained: prompts of a step, completions of each, and the learning rate."""

    prompts: int
    group: int
    rate: float

    def __str__(self) -> str:
        return f"{self.prompts} x {self.group} at {self.rate:g}"


RATES = (1.5e-4, 3e-4, 6e-4)
"""At 1.2e-3 GRPO did not learn (seed 0); distillation was not tried there."""

WAYS: Mapping[str, tuple[Way, ...]] = MappingProxyType(
    {
        "grpo": (
            *(Way(prompts=16, group=8, rate=rate) for rate in RATES),
            Way(prompts=8, group=8, rate=3e-4),
            Way(prompts=8, group=4, rate=3e-4),
        ),
        "distill": (
            *(Way(prompts=8, group=2, rate=rate) for rate in RATES),
            Way(prompts=16, group=2, rate=3e-4),
            Way(prompts=4, group=2, rate=3e-4),
        ),
    }
)
QUICK_WAYS: Mapping[str, tuple[Way, ...]] = MappingProxyType(
    {"grpo": (Way(prompts=16, group=8, rate=1e-3),), "distill": (Way(prompts=8, group=2, rate=1e-3),)}
)


@dataclass(frozen=True, kw_only=True)
class Run:
    """The result of one training: tokens until TARGET, None if never reached, and a curve of tokens and accuracies."""

    tokens: int | None
    curve: tuple[tuple[int, float], ...]


class Classroom(Laboratory):
    """A laboratory with a teacher, which scores the draws if the objective learns from scores."""

    def __init__(self, cell: Cell, recipe: Recipe, model: Path, teacher: Laboratory | None) -> None:
        super().__init__(cell, recipe, model)
        self.teacher, self.tokens = teacher, 0

    def _arrays(self, batch: Any, lag: int) -> dict[str, Any]:
        from learner.training.batches.sequences import supervised_batch

        arrays = super()._arrays(batch, lag)
        self.tokens += int(arrays["mask"].sum())
        if self.teacher is not None:
            asked = supervised_batch(arrays, self.teacher.policy.vocab_size)
            arrays["teacher_logprobs"] = self.teacher.training.logprobs(asked, 1.0)["logprobs"]
        return arrays

    def to_target(self) -> Run:
        """Train until the accuracy is TARGET, or MAX_TOKENS were trained on."""
        curve = [(0, self.evaluate())]
        while curve[-1][1] < TARGET and self.tokens < MAX_TOKENS:
            until = self.tokens + max(TOKENS_BETWEEN, SHARE_BETWEEN * self.tokens)
            while self.tokens < until:
                self.train_one()
            curve.append((self.tokens, self.evaluate()))
        tokens = crossing(curve, TARGET)
        return Run(tokens=None if tokens is None else round(tokens), curve=tuple(curve))


@dataclass(kw_only=True)
class Models:
    """Models that are made when they are first needed: one teacher, and a student for each seed."""

    directory: Path
    quick: bool

    @cached_property
    def teacher(self) -> Laboratory:
        """The model that knows the task."""
        return self._make("teacher", TEACHING, TEACHER, 0)

    def student(self, seed: int) -> Path:
        """Return the directory of the model that all runs of one seed begin with."""
        self._make(f"student {seed}", RECIPE, STUDENT, seed)
        return self.directory / f"student {seed}" / "model"

    def _make(self, name: str, recipe: Recipe, shape: Mapping[str, Any], seed: int) -> Laboratory:
        began = time.monotonic()
        if self.quick:
            recipe, shape = replace(recipe, example_rate=QUICK_RATE), TINY_QWEN3
        made = Laboratory(cell("grpo", 1e-6, seed), recipe, prepare(recipe, seed, self.directory / name, shape))
        size, took = made.policy.num_parameters / 1e6, time.monotonic() - began
        say(f"{name}: {size:.1f} M parameters, {made.evaluate():.3f} right, made in {took:.0f} s")
        return made


def cell(objective: str, rate: float, seed: int) -> Cell:
    """Return a run of the benchmark, on rollouts of the weights that it trains. Its rate is constant, since the time to
    the target is not known in advance."""
    return Cell(recipe="reversal", objective=objective, staleness=0, learning_rate=rate, seed=seed, constant=True)


@dataclass(frozen=True, kw_only=True)
class Record:
    """Finished runs, in a file of a line each; None stores nothing. Runs of other settings do not count."""

    path: Path | None

    @property
    def settings(self) -> str:
        """A digest of everything that a run depends on apart from its seed and way."""
        models = sorted(STUDENT.items()), sorted(TEACHER.items())
        return sha256(repr((models, RECIPE, TEACHING, TARGET)).encode()).hexdigest()[:12]

    def read(self) -> dict[tuple[int, str, Way], Run]:
        """Return the recorded runs, by seed, objective and way."""
        rows = [] if self.path is None else read_rows(self.path)
        return {
            (row["seed"], row["objective"], Way(**row["way"])): Run(
                tokens=row["tokens"], curve=tuple((tokens, accuracy) for tokens, accuracy in row["curve"])
            )
            for row in rows
            if row["settings"] == self.settings
        }

    def add(self, seed: int, objective: str, way: Way, run: Run) -> None:
        """Store one more run."""
        if self.path is not None:
            row = {"settings": self.settings, "seed": seed, "objective": objective, "way": asdict(way), **asdict(run)}
            add_row(self.path, row)


def compare(
    seed: int, models: Models, ways: Mapping[str, tuple[Way, ...]], record: Record
) -> dict[str, dict[Way, Run]]:
    """Return every run of one seed, by objective and way; run those that the record lacks."""
    found: dict[str, dict[Way, Run]] = {}
    done, student = record.read(), None
    for objective, tried in ways.items():
        for way in tried:
            run = done.get((seed, objective, way))
            if run is None:
                student = student or models.student(seed)
                teacher = models.teacher if objective == "distill" else None
                began = time.monotonic()
                recipe = replace(RECIPE, prompts=way.prompts, group=way.group)
                run = Classroom(cell(objective, way.rate, seed), recipe, student, teacher).to_target()
                record.add(seed, objective, way, run)
                say(f"seed {seed}: {objective:8} {way}: {told(run)}, {time.monotonic() - began:.0f} s")
            found.setdefault(objective, {})[way] = run
    return found


def told(run: Run) -> str:
    """Return a run in words."""
    most = max(accuracy for _, accuracy in run.curve)
    return f"{run.tokens:,} tokens to {TARGET}" if run.tokens else f"never reached {TARGET} ({most:.3f})"


def best(runs: Mapping[Way, Run]) -> int | None:
    """Return the fewest tokens to the target over all ways; None if none reached it."""
    return min((run.tokens for run in runs.values() if run.tokens is not None), default=None)


def options() -> Namespace:
    parser = arguments(__doc__ or "", reps=3)
    parser.add_argument("--quick", action="store_true", help="small models, one seed, one way")
    parser.add_argument("--record", type=Path, default=RECORDED, help="the file of finished runs")
    return parser.parse_args()


def claim() -> int:
    import torch

    from learner.training.model.loading import quiet_transformers

    asked = options()
    quiet_transformers()
    if asked.quick:
        torch.set_num_threads(1)  # small products are done before another thread has woken up
    ways, seeds = (QUICK_WAYS, 1) if asked.quick else (WAYS, asked.reps)
    shares, rows = list[float](), list[list[str]]()
    figures: dict[str, float | None] = {}
    with scratch(asked.keep) as directory:
        models = Models(directory=directory, quick=asked.quick)
        for seed in range(asked.seed, asked.seed + seeds):
            found = compare(seed, models, ways, Record(path=None if asked.quick else asked.record))
            grpo, distill = best(found["grpo"]), best(found["distill"])
            if grpo and distill:
                shares.append(distill / grpo)
            rows.append(
                [str(seed), number(grpo, 0), number(distill, 0), number(shares[-1] if grpo and distill else None)]
            )
            figures |= {f"grpo_tokens_{seed}": grpo, f"distill_tokens_{seed}": distill}
    say("\n" + table(["seed", "tokens of GRPO", "tokens of distillation", "share"], rows))
    whole = len(shares) == seeds
    why = "" if whole else f"{seeds - len(shares)} of {seeds} seeds did not reach {TARGET} with both"
    share = median(shares) if whole else None
    return conclude("distillation", [Bar(name="tokens_of_grpo", value=share, at_most=THIRD, why=why)], figures)


if __name__ == "__main__":
    main(claim)
