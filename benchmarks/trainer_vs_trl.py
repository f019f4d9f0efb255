"""Claim "trainer_vs_trl": our trainer takes more steps per second than TRL's, and reaches the same reward.

Bars:

- steps_vs_trl_tiny and steps_vs_trl_50m: steps per second of our trainer over those of TRL's GRPOTrainer, in one
  process where both take the same step in turn (`benchmarks/baselines/trl_duel.py`). The first: a model of 0.2 M
  parameters, 128 rollouts of 8 tokens a step. The second: 50 M, 32 rollouts of up to 64 tokens. Both: objective "grpo"
  in float32, one thread.
- reward_parity: both train five seeds of string reversal, TRL with its own generation. The bar is the mean difference
  of accuracy over the half width of its 95 % interval, so that 1 is the smallest difference that five seeds can show.
- packing_gain: trained tokens per second of our microbatches over those of padded ones, for completions of skewed
  lengths.

Invariant: a ratio is taken within one process, from medians over its steps, and a bar is the median of the repetitions.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from typing import Any

from scipy.stats import t as student

from benchmarks.harness import Bar, arguments, conclude, main, number, run, say, scratch, table

REPS = 3
SEEDS = 5
RATE = 5e-4
BASELINES = Path("benchmarks") / "baselines"

TINY_AT_LEAST = 2.0
LARGE_AT_LEAST = 1.3
PACKING_AT_LEAST = 1.5
PARITY_AT_MOST = 1.0

WARM_UP = 2
"""Steps that are not counted: TRL's first takes twice as long as the others."""


@dataclass(frozen=True, kw_only=True)
class Match:
    """One model and the batch that both train it on."""

    name: str
    model: dict[str, Any]
    prompts: int
    group: int
    prompt_tokens: int
    max_new_tokens: int
    steps: int


QWEN3 = {"tie_word_embeddings": True, "initializer_range": 0.08}
TINY = Match(
    name="0.2 M",
    model={
        **QWEN3,
        **{"hidden_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2},
        **{"head_dim": 24, "intermediate_size": 256, "vocab_size": 64, "max_position_embeddings": 64},
    },
    prompts=16,
    group=8,
    prompt_tokens=12,
    max_new_tokens=8,
    steps=40,
)
LARGE = Match(
    name="50 M",
    model={
        **QWEN3,
        **{"hidden_size": 512, "num_hidden_layers": 12, "num_attention_heads": 8, "num_key_value_heads": 4},
        **{"head_dim": 64, "intermediate_size": 1536, "vocab_size": 24_576, "max_position_embeddings": 1024},
    },
    prompts=4,
    group=8,
    prompt_tokens=32,
    max_new_tokens=64,
    steps=8,
)


PACKED = {
    **QWEN3,
    **{"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"head_dim": 64, "intermediate_size": 768, "vocab_size": 2048, "max_position_embeddings": 2048},
}
LONGEST = 512
PACKED_BUDGET = 8192


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Median seconds a step; and the distance of the final weights, as a share of the way that they went."""

    theirs_s: float
    ours_s: float
    apart: float

    @property
    def ratio(self) -> float:
        return self.theirs_s / self.ours_s


def duel(match: Match, model: Path, seed: int, out: Path) -> Speed:
    """Run one repetition in its own process, and return its speeds."""
    result = out / f"{match.name.replace(' ', '')}-{seed}.json"
    sizes = {
        "prompts": match.prompts,
        "group": match.group,
        "prompt-tokens": match.prompt_tokens,
        "max-new-tokens": match.max_new_tokens,
        "steps": match.steps + WARM_UP,
        "seed": seed,
    }
    options = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    program = str(BASELINES / "trl_duel.py")
    run([program, str(model), str(result), *options], log=result.with_suffix(".log"), caches=out, measure_memory=False)
    found = json.loads(result.read_text(encoding="utf-8"))
    theirs, ours = (statistics.median(found[who][WARM_UP:]) for who in ("theirs_s", "ours_s"))
    return Speed(theirs_s=theirs, ours_s=ours, apart=found["apart"])


def packing_gain(seed: int, out: Path) -> float:
    """Return the tokens per second of our microbatches over those of padded ones, with a model of PACKED."""
    from benchmarks.baselines.padding import measure, skewed_batch
    from learner.trainer_api.requests import Hyperparameters
    from learner.training.model.loading import make_model
    from learner.training.model.policy import load_policy
    from learner.training.train_state import Training

    directory = out / f"packed-{seed}"
    make_model(directory, PACKED, seed)
    hyperparameters = Hyperparameters(max_new_tokens=LONGEST, max_tokens_per_microbatch=PACKED_BUDGET)
    training = Training(load_policy(directory), hyperparameters)
    found = measure(training, skewed_batch(seed, int(PACKED["vocab_size"]), LONGEST))
    say(
        f"packing, seed {seed}: {found.ours:.0f} tokens/s, padded {found.padded:.0f} ({found.gain:.2f}x); "
        f"{found.tokens} tokens in {found.ours_positions} positions, padded {found.padded_positions}"
    )
    return found.gain


def parity(seeds: Sequence[int], out: Path) -> list[tuple[float, float]]:
    """Return the final accuracy of TRL and ours, for each seed."""
    from benchmarks.lagged.laboratory import Laboratory, prepare
    from benchmarks.lagged.recipe import RECIPES, Cell

    recipe = RECIPES["reversal"]
    found = []
    for seed in seeds:
        model = prepare(recipe, seed, out / f"reversal-{seed}")
        result = out / f"parity-{seed}.json"
        argv = [str(BASELINES / "trl_reversal.py"), str(model), str(result), "--seed", str(seed), "--rate", str(RATE)]
        run(argv, log=result.with_suffix(".log"), caches=out, measure_memory=False)
        cell = Cell(recipe="reversal", objective="grpo", staleness=0, learning_rate=RATE, seed=seed, constant=True)
        laboratory = Laboratory(cell, recipe, model)
        laboratory.train_all()
        found.append((json.loads(result.read_text(encoding="utf-8"))["final"], laboratory.evaluate()))
        say(f"seed {seed}: TRL {found[-1][0]:.3f}, ours {found[-1][1]:.3f}")
    return found


def outside(pairs: Sequence[tuple[float, float]]) -> float:
    """Return the mean difference as a share of half its 95 % interval; above 1 the two differ significantly."""
    differences = [ours - theirs for theirs, ours in pairs]
    half = float(student.ppf(0.975, len(pairs) - 1)) * statistics.stdev(differences) / sqrt(len(pairs))
    return abs(statistics.fmean(differences)) / half if half else 0.0


def made(match: Match, out: Path) -> Path:
    """Make a directory with a new model of that size and a tokenizer, and return it."""
    from learner.training.model.loading import make_model
    from node.tasks.tokenizer import write_character_tokenizer

    directory = out / match.name.replace(" ", "")
    directory.mkdir()
    write_character_tokenizer(directory)
    make_model(directory, match.model, 0)
    return directory


def claim() -> int:
    asked = arguments(__doc__ or "", reps=REPS).parse_args()
    import torch

    from learner.training.model.loading import quiet_transformers

    torch.set_num_threads(1)
    quiet_transformers()
    os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
    rows, bars = [], []
    with scratch(asked.keep) as out:
        for match, name, least in (
            (TINY, "steps_vs_trl_tiny", TINY_AT_LEAST),
            (LARGE, "steps_vs_trl_50m", LARGE_AT_LEAST),
        ):
            model = made(match, out)
            speeds = [duel(match, model, asked.seed + rep, out) for rep in range(asked.reps)]
            rows += [
                [match.name, number(1 / s.theirs_s), number(1 / s.ours_s), number(s.ratio), f"{s.apart:.1e}"]
                for s in speeds
            ]
            bars.append(Bar(name=name, value=statistics.median(s.ratio for s in speeds), at_least=least))
        say(table(["model", "TRL steps/s", "ours", "ratio", "weights apart"], rows) + "\n")
        gains = [packing_gain(asked.seed + rep, out) for rep in range(asked.reps)]
        pairs = parity(range(asked.seed, asked.seed + SEEDS), out)
    bars.append(Bar(name="packing_gain", value=statistics.median(gains), at_least=PACKING_AT_LEAST))
    bars.append(Bar(name="reward_parity", value=outside(pairs), at_most=PARITY_AT_MOST))
    theirs, ours = (statistics.fmean(values) for values in zip(*pairs, strict=True))
    return conclude("trainer_vs_trl", bars, {"trl_reward": theirs, "our_reward": ours})


if __name__ == "__main__":
    main(claim)
