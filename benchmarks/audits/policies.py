"""Make the policies of the benchmark: taught, trained, and published at every step that a cheat may go back to.

There are two models: a tiny one that reverses strings, made and trained as in the study of staleness; and one of 50 M
parameters that speaks a small language in which every word is followed by one of four.

Invariants:

- Both are trained by the product's own trainer (`learner.training.train_state`) with its default objective, each step
  on rollouts of the step before.
- They are published as a swarm publishes, in bfloat16.
- Equal seeds give equal policies on one machine.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.audits.quantise import QUANTISERS, quantised
from benchmarks.lagged.laboratory import Laboratory, prepare
from benchmarks.lagged.recipe import MODEL, RECIPES, Cell
from benchmarks.lagged.sampling import draw
from learner.trainer_api.requests import Hyperparameters
from learner.training.batches.sequences import rollout_batch
from learner.training.model.export import export
from learner.training.model.loading import make_model
from learner.training.model.policy import Policy, load_policy
from learner.training.train_state import Training
from node.learner_role.training.warm_start import VLLM_HEAD_DIM

FAST, SLOW = 5e-4, 2e-5
"""Learning rates of the policies: at the first a single step is detectable, at the second it need not be."""

LAGS = (1, 3, 10)

TINY_STEPS, LATER_STEPS = 12, 60
"""Training steps before the claimed policy: early in a run, with draws of 0.4 nats a token, as language models in
training have; and late, with 0.1."""

GROUP = 8


@dataclass(frozen=True, kw_only=True)
class PolicySet:
    """The policies made of one model, as model directories, and their prompts.

    `current` is the learner's last version; `older` are those of so many steps before, at FAST. `slow` and `slow_older`
    are the same for a run that continued from `current` at SLOW. `others` by name: weights from outside of the run.
    `prompts`: enough for every lease; each gets GROUP completions.
    """

    current: Path
    older: Mapping[int, Path]
    slow: Path
    slow_older: Mapping[int, Path]
    others: Mapping[str, Path]
    prompts: Sequence[tuple[int, ...]]
    max_new_tokens: int
    stop_ids: frozenset[int]


def publish(policy: Policy, directory: Path) -> Path:
    """Export as the learner does by default; return the directory."""
    export(policy, directory, "bfloat16", 1 << 30)
    return directory


def trained(train: Callable[[], object], policy: Policy, steps: int, root: Path) -> tuple[Path, dict[int, Path]]:
    """Train this many steps; return the last version and those LAGS steps before it."""
    kept = {}
    for step in range(steps + 1):
        if step:
            train()
        if (lag := steps - step) in (0, *LAGS):
            kept[lag] = publish(policy, root / f"step-{step}")
    return kept.pop(0), kept


def quantisations(source: Path, root: Path) -> dict[str, Path]:
    """Return the same policy in few bits, by the name of the method."""
    return {how: quantised(source, root / how, how) for how in QUANTISERS}


# The tiny model.


def tiny(root: Path, seed: int, prompts: int, steps: int = TINY_STEPS) -> PolicySet:
    """Make the policies of 0.2 M parameters, with heads as wide as vLLM requires and completions of 7 tokens.

    Models taught before the run are taken from `root` if they are there.
    """
    own = root / f"after-{steps}"
    recipe, shape = RECIPES["reversal"], {**MODEL, "head_dim": VLLM_HEAD_DIM}
    taught = prepare(recipe, seed, root / "taught", shape)
    cell = Cell(recipe="reversal", objective="topr", staleness=0, learning_rate=FAST, seed=seed, constant=True)
    fast = Laboratory(cell, recipe, taught)
    current, older = trained(fast.train_one, fast.policy, steps, own / "fast")
    slow = Laboratory(
        Cell(recipe="reversal", objective="topr", staleness=0, learning_rate=SLOW, seed=seed, constant=True),
        recipe,
        current,
    )
    slowest, slow_older = trained(slow.train_one, slow.policy, max(LAGS), own / "slow")
    smaller = prepare(recipe, seed, root / "smaller", {**shape, "hidden_size": 64, "intermediate_size": 128})
    others = {
        "other": prepare(recipe, seed + 1, root / "other", shape),
        "smaller": smaller,
        **quantisations(current, own / "quantised"),
    }
    encoded = fast.encoded
    return PolicySet(
        current=current,
        older=older,
        slow=slowest,
        slow_older=slow_older,
        others=others,
        prompts=[encoded.prompt(50_000 + index) for index in range(prompts)],
        max_new_tokens=recipe.max_new_tokens,
        stop_ids=frozenset(encoded.codec.stop_ids),
    )


# The larger one.

LARGE = {
    "vocab_size": 16_384,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 11,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
"""51 M parameters."""

SMALLER = {**LARGE, "hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 2}

WORDS = 128
ODDS = (0.70, 0.18, 0.08, 0.04)
"""Probabilities of the four words that may follow a word: 0.89 nats a word."""

PROMPT, LINE = 8, 56
"""Tokens of a prompt, and of a completion: fixed, so the budget ends it."""

EMBEDDED = 0.5
"""Deviation of the embeddings. At 0.02 the random layers above would drown the word that is followed."""

EXAMPLES, EXAMPLE_BATCH = 192, 16
"""Lines that teach the head, and how many are read at a time."""

HEAD_STEPS, HEAD_BATCH, HEAD_RATE = 120, 512, 3e-3

ROLLOUT_PROMPTS = 2
"""Prompts of a training step: 16 completions."""


@dataclass(frozen=True, kw_only=True)
class Language:
    """A language of WORDS token ids: each is followed by one of four, `after` [WORDS, 4], with ODDS."""

    words: NDArray[np.int64]
    after: NDArray[np.int64]

    def lines(self, count: int, length: int, chance: np.random.Generator) -> NDArray[np.int64]:
        """Return token ids (count, length)."""
        places = np.empty((count, length), np.int64)
        places[:, 0] = chance.integers(WORDS, size=count)
        for at in range(1, length):
            turn = chance.choice(4, size=count, p=ODDS)
            places[:, at] = self.after[places[:, at - 1], turn]
        return self.words[places]


def language(seed: int, vocab_size: int) -> Language:
    chance = np.random.default_rng(seed)
    words = chance.permutation(vocab_size)[:WORDS].astype(np.int64)
    return Language(words=words, after=np.stack([chance.permutation(WORDS) for _ in range(4)], axis=1))


def reward(tokens: Sequence[int]) -> float:
    """Return 1 if the completion ends on an even id, else 0.

    Like real rewards it is an outcome that most tokens do not affect. Rewarding each even id would leave no choice
    after ten steps, and then no test could tell one policy from the next.
    """
    return float(tokens[-1] % 2 == 0)


def teach(policy: Policy, spoken: Language, seed: int) -> None:
    """Train the head by cross entropy on lines of the language, on what the random layers below make of the words.

    To teach all layers would take longer than everything else here; the training afterwards trains all of them.
    """
    model, chance = policy.model, np.random.default_rng(seed)
    lines = torch.from_numpy(spoken.lines(EXAMPLES, PROMPT + LINE, chance))
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        embeddings.mul_(EMBEDDED / float(embeddings.std()))
        read = [model.base_model(input_ids=some).last_hidden_state[:, :-1] for some in lines.split(EXAMPLE_BATCH)]
        states, following = torch.cat(read).flatten(0, 1), lines[:, 1:].flatten()
    head = model.get_output_embeddings().weight
    optimizer = torch.optim.AdamW([head], lr=HEAD_RATE, weight_decay=0.0)
    for _ in range(HEAD_STEPS):
        some = torch.from_numpy(chance.integers(len(states), size=HEAD_BATCH))
        torch.nn.functional.cross_entropy(states[some] @ head.T, following[some]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        model.zero_grad(set_to_none=True)


class Run:
    """A training run of the larger model, a step at a time."""

    def __init__(self, directory: Path, spoken: Language, rate: float, seed: int) -> None:
        self.policy = load_policy(directory)
        self._training = Training(self.policy, Hyperparameters(learning_rate=rate, max_new_tokens=LINE))
        self._spoken, self._chance = spoken, np.random.default_rng(1000 + seed)
        self._draws = torch.Generator().manual_seed(seed)

    def train_one(self) -> None:
        """Take one step on rollouts of the weights that it trains."""
        prompts = [tuple(line) for line in self._spoken.lines(ROLLOUT_PROMPTS, PROMPT, self._chance).tolist()]
        drawn = draw(self.policy.model, prompts, GROUP, max_new_tokens=LINE, stop_ids=(), generator=self._draws)
        rows = [(prompts[place // GROUP], one.tokens) for place, one in enumerate(drawn)]
        arrays: dict[str, NDArray[Any]] = {
            "tokens": np.concatenate([np.array([*prompt, *tokens], np.int32) for prompt, tokens in rows]),
            "lengths": np.full(len(rows), PROMPT + LINE, np.int32),
            "mask": np.concatenate([np.repeat([0, 1], [PROMPT, LINE]).astype(np.uint8)] * len(rows)),
            "behaviour_logprobs": np.concatenate([one.logprobs for one in drawn]),
            "lags": np.zeros(len(rows) * LINE, np.int32),
            "rewards": np.array([reward(one.tokens) for one in drawn], np.float32),
            "group_sizes": np.full(ROLLOUT_PROMPTS, GROUP, np.int32),
            "origins": np.zeros(len(rows), np.uint8),
        }
        self._training.step(rollout_batch(arrays, self.policy.vocab_size))


def large(root: Path, seed: int, prompts: int) -> PolicySet:
    """Make the policies of 50 M parameters, with completions of LINE tokens."""
    spoken = language(seed, int(LARGE["vocab_size"]))
    taught = _taught(root / "taught", LARGE, spoken, seed)
    fast = Run(taught, spoken, FAST, seed)
    current, older = trained(fast.train_one, fast.policy, max(LAGS), root / "fast")
    slow = Run(current, spoken, SLOW, seed)
    slowest, slow_older = trained(slow.train_one, slow.policy, max(LAGS), root / "slow")
    make_model(root / "other", LARGE, seed + 1)
    others = {
        "other": root / "other",
        "smaller": _taught(root / "smaller", SMALLER, spoken, seed),
        **quantisations(current, root / "quantised"),
    }
    asked = spoken.lines(prompts, PROMPT, np.random.default_rng(2000 + seed)).tolist()
    return PolicySet(
        current=current,
        older=older,
        slow=slowest,
        slow_older=slow_older,
        others=others,
        prompts=[tuple(line) for line in asked],
        max_new_tokens=LINE,
        stop_ids=frozenset(),
    )


def _taught(directory: Path, shape: Mapping[str, Any], spoken: Language, seed: int) -> Path:
    untaught = directory.with_name(f"{directory.name}-untaught")
    make_model(untaught, shape, seed)
    policy = load_policy(untaught)
    teach(policy, spoken, seed)
    publish(policy, directory)
    shutil.rmtree(untaught)
    return directory
