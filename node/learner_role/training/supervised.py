"""Teach by example: examples as the arrays of one supervised step, and how fast to go on towards a band.

Both the demo's warm start and `volery warmup` are made of this. Pure.

Invariants:
- A token of an example is learnt where the policy says it, and nowhere else; the first token never is.
- After an overshoot the next block is shorter and its rate lower, so that a band of any width is met in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from protocol.core.pipe import Arrays

Passage = tuple[tuple[int, ...], bool]
"""Token ids of one part of an example, and whether it is what the policy shall say."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One sequence: `tokens` int32 [T], and `learnt` uint8 [T], 1 where a token is a target. Five bytes a token."""

    tokens: NDArray[np.int32]
    learnt: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def targets(self) -> int:
        """Tokens that are learnt."""
        return int(self.learnt.sum())


def example_of(passages: Sequence[Passage]) -> Example:
    """Return the passages of an example end to end."""
    return Example(
        tokens=np.concatenate([np.array(tokens, np.int32) for tokens, _ in passages]),
        learnt=np.concatenate([np.full(len(tokens), is_said, np.uint8) for tokens, is_said in passages]),
    )


def arrays_of(examples: Sequence[Example]) -> Arrays:
    """Return the arrays of one `supervised` request, or of one for log probabilities."""
    return {
        "tokens": np.concatenate([one.tokens for one in examples]),
        "lengths": np.array([len(one) for one in examples], np.int32),
        "mask": np.concatenate([one.learnt for one in examples]),
    }


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How to go on: so many steps until the next look, at the rate `rate`. `best` is the highest score so far."""

    block: int
    rate: float
    best: float = 0.0

    def after_overshoot(self) -> Pace:
        """Return the pace of another try from where this block began."""
        return replace(self, block=max(1, self.block // 2), rate=self.rate / 2)

    def after_block(self, reached: float, *, moving: float, fine_block: int) -> Pace:
        """Return the pace after a block that stayed below the band: looks come sooner once the score moves."""
        best = max(self.best, reached)
        return replace(self, best=best, block=min(self.block, fine_block) if best >= moving else self.block)
