"""Compare batches with padded rows and our microbatches: tokens per second on one skewed batch.

The padded way is that of a plain data collator: sequences in the order of the batch, as many rows as the budget holds
at the longest of them, padded to that one on the right.

Invariants:

- Both ways score the very same targets with the same model, budget of positions and threads, and take the gradient of
  the same sum.
- A token counts once in either layout.
- The ways take turns, so that a busy machine slows both.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch

from learner.training.batches.packing import Microbatch, microbatches
from learner.training.batches.sequences import Ragged
from learner.training.model.policy import Policy
from learner.training.train_state import Training

PROMPTS, GROUP = 16, 8
LONGEST = 1024
"""Most tokens of a completion."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Tokens per second of forward and backward passes, medians over rounds, and the positions that each way used."""

    ours: float
    padded: float
    tokens: int
    ours_positions: int
    padded_positions: int

    @property
    def gain(self) -> float:
        """How many times as fast ours is."""
        return self.ours / self.padded


def skewed_batch(seed: int, vocab_size: int, longest: int = LONGEST) -> Ragged:
    """Return groups of completions of log-normal lengths, as reasoning has: most are short, a few reach the end."""
    generator = np.random.default_rng(seed)
    prompts = [generator.integers(0, vocab_size, length) for length in generator.integers(16, 65, PROMPTS)]
    lengths = np.clip(np.exp(generator.normal(4.0, 1.2, PROMPTS * GROUP)), 4, longest).astype(int)
    sequences, targets = [], []
    for number, length in enumerate(lengths):
        prompt = prompts[number // GROUP]
        sequences.append(np.concatenate([prompt, generator.integers(0, vocab_size, length)]))
        targets.append(np.arange(len(prompt) + length) >= len(prompt))
    return Ragged(
        tokens=np.concatenate(sequences),
        lengths=np.array([len(one) for one in sequences]),
        targets=np.concatenate(targets),
    )


def padded_microbatches(batch: Ragged, max_tokens: int) -> Iterator[Microbatch]:
    """Yield rows in the batch's order, as many at a time as the budget holds at the longest of them."""
    chosen: list[int] = []
    for number in range(len(batch)):
        longest = max(int(batch.lengths[one]) - 1 for one in (*chosen, number))
        if chosen and longest * (len(chosen) + 1) > max_tokens:
            yield from _together(batch, chosen)
            chosen = []
        chosen.append(number)
    yield from _together(batch, chosen)


def _together(batch: Ragged, chosen: list[int]) -> Iterator[Microbatch]:
    keep = np.zeros(len(batch), np.bool_)
    keep[chosen] = True
    yield from microbatches(batch, keep, 1 << 60, share_prompts=False)


def measure(training: Training, batch: Ragged, rounds: int = 3) -> Measured:
    """Take `rounds` passes each way over `batch` with the budget of `training`."""
    policy, budget = training.policy, training.hyperparameters.max_tokens_per_microbatch
    tokens = int(batch.lengths.sum())

    def ours() -> Iterator[Microbatch]:
        return training.parts(batch, np.ones(len(batch), np.bool_))

    def padded() -> Iterator[Microbatch]:
        return padded_microbatches(batch, budget)

    times: dict[str, list[float]] = {"ours": [], "padded": []}
    for _ in range(rounds + 1):  # the first warms up caches
        for name, parts in (("ours", ours), ("padded", padded)):
            times[name].append(_seconds(policy, parts))
    training.forget_gradients()
    return Measured(
        ours=tokens / median(times["ours"][1:]),
        padded=tokens / median(times["padded"][1:]),
        tokens=tokens,
        ours_positions=sum(part.inputs.numel() for part in ours()),
        padded_positions=sum(part.inputs.numel() for part in padded()),
    )


def _seconds(policy: Policy, parts: Callable[[], Iterator[Microbatch]]) -> float:
    started = time.perf_counter()
    for part in parts():
        policy.score(part, 1.0).logprobs.sum().backward()
    if policy.ranks.device.type == "cuda":
        torch.cuda.synchronize()
    policy.model.zero_grad(set_to_none=True)
    return time.perf_counter() - started
