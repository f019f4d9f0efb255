"""Make and audit completions with graphics cards: teach policies on one, and audit between all kinds of engines.

Policies speak the small language of `policies.py`. They are taught in full by examples, then trained a few steps on
their own rollouts, all by the product's trainer on the card.

Invariants:

- Completions come from the engines that nodes run, by the seeded sampler; findings come from those that learners audit
  with.
- All engines of one model work at the same time, which changes no number.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import trio

from benchmarks.audits.evidence import Pool, pool_of
from benchmarks.audits.policies import GROUP, LARGE, LINE, PROMPT, Language, language, publish, reward
from benchmarks.audits.quantise import quantised
from benchmarks.audits.recording import HONEST, SHORT, Deed, Made, Peer, generated, passages_of, verified, version_of
from learner.trainer_api.requests import Device, Hyperparameters
from learner.training.batches.sequences import rollout_batch, supervised_batch
from learner.training.distributed.ranks import Ranks
from learner.training.model.loading import make_model
from learner.training.model.policy import load_policy
from learner.training.train_state import Training
from node.engine.transformers import TransformersConfig
from node.engine.worker_engine import WorkerEngine, open_worker_engine
from node.learner_role.trust.auditor import found_of
from protocol.core.pipe import Arrays

LINES = 64
"""Lines of a step by example."""

ROLLOUTS = 8
"""Prompts of a training step: 64 completions."""

STEPS = 3

TF32 = "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"
"""The variable by which the owner of a card makes torch round the factors of float32 products. None of our settings
does."""

OTHER, FOUR_BITS, LAG = "other", "4-bit", "lag 1"


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """Groups of honest work of each card, those that a processor generates or audits (0: it could not keep up), and
    groups of each cheat."""

    honest: int
    by_processor: int
    cheat: int


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model, its teaching and training, and the amounts generated with it."""

    config: Mapping[str, Any]
    examples: int
    taught_at: float
    trained_at: float
    amounts: Amounts


SHAPES = {
    "0.5 M": Shape(
        config={
            **LARGE,
            "vocab_size": 1024,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
        examples=400,
        taught_at=3e-3,
        trained_at=5e-4,
        amounts=Amounts(honest=256, by_processor=256, cheat=32),
    ),
    "51 M": Shape(
        config=LARGE,
        examples=250,
        taught_at=1e-3,
        trained_at=5e-4,
        amounts=Amounts(honest=256, by_processor=256, cheat=32),
    ),
    "0.6 B": Shape(
        config={
            **LARGE,
            "vocab_size": 151_936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "tie_word_embeddings": True,
        },
        examples=250,
        taught_at=3e-4,
        trained_at=2e-5,
        amounts=Amounts(honest=96, by_processor=0, cheat=16),
    ),
}
"""By parameters. The last has Qwen3-0.6B's shapes, with weights of our own."""


@dataclass(frozen=True, kw_only=True, order=True)
class Card(Peer):
    """An engine on a device; `tf32`: its card rounds the factors of float32 products to ten bits."""

    device: str
    tf32: bool = False

    def __str__(self) -> str:
        return f"{self.engine} {'TF32' if self.tf32 else SHORT[self.dtype]}"

    @property
    def is_float32(self) -> bool:
        return self.dtype == "float32"


def cards(device: str) -> list[Card]:
    """Return the engines that are compared, on `device`, a card, and on the processor."""
    name = "GPU" if device == "cuda" else device
    return [
        Card(engine=name, device=device, dtype="float32"),
        Card(engine=name, device=device, dtype="float32", tf32=True),
        Card(engine=name, device=device, dtype="bfloat16"),
        Card(engine="CPU", device="cpu", dtype="float32"),
    ]


@contextmanager
def rounding(tf32: bool) -> Iterator[None]:
    """Make workers that are started inside the block round their products like this."""
    before = os.environ.get(TF32)
    os.environ[TF32] = str(int(tf32))
    try:
        yield
    finally:
        if before is None:
            del os.environ[TF32]
        else:
            os.environ[TF32] = before


@asynccontextmanager
async def engines_of(wanted: Sequence[Card]) -> AsyncIterator[dict[Card, WorkerEngine]]:
    """Yield all engines, for as long as the scope lasts."""
    async with AsyncExitStack() as stack:
        opened = {}
        for card in wanted:
            config = TransformersConfig(
                python=Path(sys.executable),
                device=card.device,
                threads=max(1, (os.cpu_count() or 1) - len(wanted)) if card.device == "cpu" else 1,
                compute_dtype=card.dtype,
            )
            with rounding(card.tf32):
                opened[card] = await stack.enter_async_context(open_worker_engine(config))
        yield opened


# Policies.


def examples(spoken: Language, chance: np.random.Generator) -> Arrays:
    lines = spoken.lines(LINES, PROMPT + LINE, chance)
    return {
        "tokens": lines.reshape(-1).astype(np.int32),
        "lengths": np.full(LINES, PROMPT + LINE, np.int32),
        "mask": np.tile(np.arange(PROMPT + LINE) > 0, LINES).astype(np.uint8),
    }


async def teach_and_train(
    root: Path, shape: Shape, device: Device, engine: WorkerEngine, seed: int
) -> tuple[list[Deed], float]:
    """Teach and train a policy; return the deeds with its last version, and the last loss of its examples (nats a
    token; the language has 0.89)."""
    spoken = language(seed, int(shape.config["vocab_size"]))
    make_model(root / "untaught", shape.config, seed)
    ranks = Ranks()
    ranks.place(device, "auto")
    policy = load_policy(root / "untaught", ranks=ranks)
    training = Training(policy, Hyperparameters(learning_rate=shape.trained_at, max_new_tokens=LINE))
    chance, loss = np.random.default_rng(seed), float("nan")
    for step in range(shape.examples):
        rate = shape.taught_at * min(1.0, (step + 1) / 20)
        loss = training.step_supervised(supervised_batch(examples(spoken, chance), policy.vocab_size), rate)["loss"]
    older = current = publish(policy, root / "step-0")
    for step in range(STEPS):
        training.step(rollout_batch(await rollouts(engine, current, spoken, chance, step), policy.vocab_size))
        older, current = current, publish(policy, root / f"step-{step + 1}")
    make_model(root / "other", shape.config, seed + 1)
    wrong = {OTHER: root / "other", FOUR_BITS: quantised(current, root / "4-bit", "4-bit"), LAG: older}
    deeds = [Deed(name=name, weights=weights, claimed=current) for name, weights in ({HONEST: current} | wrong).items()]
    return deeds, loss


async def rollouts(
    engine: WorkerEngine, weights: Path, spoken: Language, chance: np.random.Generator, step: int
) -> Arrays:
    """Return rollouts of the weights that they will train."""
    await engine.install(version_of(weights), weights)
    prompts = [tuple(line) for line in spoken.lines(ROLLOUTS, PROMPT, chance).tolist() for _ in range(GROUP)]
    seeds = [(1 << 50) + (step << 20) + place for place in range(len(prompts))]
    drawn = await generated(engine, prompts, seeds, max_new_tokens=LINE)
    count = len(prompts)
    return {
        "tokens": np.array(
            [[*prompt, *one.tokens] for prompt, one in zip(prompts, drawn, strict=True)], np.int32
        ).ravel(),
        "lengths": np.full(count, PROMPT + LINE, np.int32),
        "mask": np.tile(np.arange(PROMPT + LINE) >= PROMPT, count).astype(np.uint8),
        "behaviour_logprobs": np.array([one.logprobs for one in drawn], np.float32).ravel(),
        "lags": np.zeros(count * LINE, np.int32),
        "rewards": np.array([reward(one.tokens) for one in drawn], np.float32),
        "group_sizes": np.full(ROLLOUTS, GROUP, np.int32),
        "origins": np.zeros(count, np.uint8),
    }


# Completions and their audits.


Passed = dict[tuple[Card, str, Card], Pool]
"""Findings by the engine that generated, the deed, and the engine that audited."""


async def passed_round(
    engines: Mapping[Card, WorkerEngine], deeds: Sequence[Deed], shape: Shape, amounts: Amounts, seed: int
) -> Passed:
    """Return every engine's completions, audited by every engine except the one with TF32 rounding."""
    spoken = language(seed, int(shape.config["vocab_size"]))
    lines = spoken.lines(amounts.honest, PROMPT, np.random.default_rng(2000 + seed)).tolist()
    prompts = [tuple(line) for line in lines for _ in range(GROUP)]
    made: list[tuple[Card, Made]] = []
    found: Passed = {}
    async with trio.open_nursery() as nursery:
        for place, (card, engine) in enumerate(engines.items()):
            nursery.start_soon(_make_all, made, card, engine, deeds, prompts, amounts, (seed << 40) + (place << 32))
    async with trio.open_nursery() as nursery:
        for card, engine in engines.items():
            if not card.tf32:
                nursery.start_soon(_look_at_all, found, card, engine, made, amounts)
    return found


async def _make_all(
    made: list[tuple[Card, Made]],
    card: Card,
    engine: WorkerEngine,
    deeds: Sequence[Deed],
    prompts: Sequence[tuple[int, ...]],
    amounts: Amounts,
    first: int,
) -> None:
    for number, deed in enumerate(deeds):
        if deed.name != HONEST and card.device == "cpu":
            continue
        groups = amounts.cheat if deed.name != HONEST else amounts.honest
        asked = prompts[: GROUP * (min(groups, amounts.by_processor) if card.engine == "CPU" else groups)]
        seeds = [first + (number << 24) + place for place in range(len(asked))]
        await engine.install(version_of(deed.weights), deed.weights)
        drawn = await generated(engine, asked, seeds, max_new_tokens=LINE)
        made.append((card, Made(peer=card, deed=deed, prompts=asked, seeds=seeds, completions=drawn)))


async def _look_at_all(
    found: Passed, card: Card, engine: WorkerEngine, made: Sequence[tuple[Card, Made]], amounts: Amounts
) -> None:
    for maker, work in made:
        if work.deed.name != HONEST and card.engine == "CPU":
            continue
        await engine.install(version_of(work.deed.claimed), work.deed.claimed)
        passages = passages_of(work)
        if card.engine == "CPU":
            passages = passages[: GROUP * amounts.by_processor]
        told = await verified(engine, passages)
        findings = [found_of(one, passage) for one, passage in zip(told, passages, strict=True)]
        found[maker, work.deed.name, card] = pool_of(findings, GROUP)
