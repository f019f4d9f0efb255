"""Define the tokens of a version's probe (`protocol.versions.probe`), spread over the vocabulary.

They are few, so that scoring them costs a training step nothing. They are short, so that an engine that takes them
token by token is done in a few steps.

Invariants:

- The tokens depend only on the vocabulary's size, so they are the same for every version.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.core.pipe import Arrays

ROWS, PROMPT, SCORED = 8, 4, 4
"""Number of sequences, and the numbers of given and of scored tokens in each."""
LEAST = -100.0
"""Lowest log probability that is reported: smaller ones are not compared closely."""
COARSER = ("float32", "float16", "bfloat16")
"""Number formats from the finest to the coarsest."""


def probe_batch(vocab_size: int) -> Arrays:
    """Return the probe as the trainer scores it: `tokens`, `lengths`, `mask` of `sequences.supervised_batch`."""
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
    """Return the probe for a reply: `dtype`, `prompts`, `completions`, and `logprobs` of all completion tokens."""
    rows = probe_batch(vocab_size)["tokens"].reshape(ROWS, -1).tolist()
    return {
        "dtype": dtype,
        "prompts": [row[:PROMPT] for row in rows],
        "completions": [row[PROMPT:] for row in rows],
        "logprobs": [min(0.0, max(LEAST, float(one))) for one in logprobs],
    }
