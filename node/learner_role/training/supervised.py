"""Prepare supervised steps: examples as arrays, and the pace towards a band of accuracy.

Both the demo's warm start and `volery warmup` use this. Pure.

Invariants:

- Only tokens of an example that the policy shall say are targets, and the first token never is.
- After an overshoot, the next block is shorter and its learning rate lower, so that a band of any width is met in the
  end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from protocol.core.pipe import Arrays

Passage = tuple[tuple[int, ...], bool]
"""Token ids of one part of an example, and whether the policy shall say it."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One sequence: `tokens` int32 [T], and `learnt` uint8 [T], 1 if a token is a target. Five bytes a token."""

    tokens: NDArray[np.int32]
    learnt: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def targets(self) -> int:
        """Return the number of target tokens."""
        return int(self.learnt.sum())


def example_of(passages: Sequence[Passage]) -> Example:
    """Return an example with these passages, one after the other."""
    return Example(
        tokens=np.concatenate([np.array(tokens, np.int32) for tokens, _ in passages]),
        learnt=np.concatenate([np.full(len(tokens), is_said, np.uint8) for tokens, is_said in passages]),
    )


def arrays_of(examples: Sequence[Example]) -> Arrays:
    """Return the arrays for one `supervised` request, or for one of log probabilities."""
    return {
        "tokens": np.concatenate([one.tokens for one in examples]),
        "lengths": np.array([len(one) for one in examples], np.int32),
        "mask": np.concatenate([one.learnt for one in examples]),
    }


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How to continue: `block` steps until the next evaluation, at the learning rate `rate`.

    `best` is the highest score so far.
    """

    block: int
    rate: float
    best: float = 0.0

    def after_overshoot(self) -> Pace:
        """Return the pace for another try from the start of this block."""
        return replace(self, block=max(1, self.block // 2), rate=self.rate / 2)

    def after_block(self, reached: float, *, moving: float, fine_block: int) -> Pace:
        """Return the pace after a block that stayed below the band. Blocks become shorter once the score moves."""
        best = max(self.best, reached)
        return replace(self, best=best, block=min(self.block, fine_block) if best >= moving else self.block)
