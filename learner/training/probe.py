"""The tokens of a version's probe (`protocol.versions.probe`): the same for every version, spread over the vocabulary.

What always holds: they follow from the vocabulary's size alone. They are few, so that scoring them costs a training
step nothing, and short, so that an engine that takes them token by token is done in a few steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.core.pipe import Arrays

ROWS, PROMPT, SCORED = 8, 4, 4
"""Sequences, and tokens of each that are given and that are scored."""
LEAST = -100.0
"""Of a logprob that is told: what is less likely is not looked at more closely."""
COARSER = ("float32", "float16", "bfloat16")
"""From the finest number format to the coarsest."""


def probe_batch(vocab_size: int) -> Arrays:
    """The probe as the trainer scores it: `tokens`, `lengths`, `mask` of `sequences.supervised_batch`."""
    tokens = np.random.Generator(np.random.Philox(7)).integers(0, vocab_size, (ROWS, PROMPT + SCORED), np.int64)
    mask = np.zeros((ROWS, PROMPT + SCORED), np.uint8)
    mask[:, PROMPT:] = 1
    return {
        "tokens": tokens.astype(np.int32).ravel(),
        "lengths": np.full(ROWS, PROMPT + SCORED, np.int32),
        "mask": mask.ravel(),
    }


def coarsest(dtypes: Sequence[str]) -> str:
    return max(dtypes, key=COARSER.index)


def describe(vocab_size: int, logprobs: Sequence[float], dtype: str) -> dict[str, object]:
    """The probe in an answer of the trainer's: `dtype`, `prompts`, `completions`, and `logprobs` of all of them."""
    rows = probe_batch(vocab_size)["tokens"].reshape(ROWS, -1).tolist()
    return {
        "dtype": dtype,
        "prompts": [row[:PROMPT] for row in rows],
        "completions": [row[PROMPT:] for row in rows],
        "logprobs": [min(0.0, max(LEAST, float(one))) for one in logprobs],
    }
