"""Say whether several programs give the tokens of one completion the same log probabilities.

A swarm works only if engine, audit and trainer compute one model. If they do not, honest nodes fail audits, or training
corrects for a difference that is not due to lag. A trial compares them before any node joins
(`node/learner_role/trial/trial_run.py`).

Invariants:

- Readings that agree give "", and nothing else does.
- A reading that is not finite, or has another length than the first, never agrees.
- The order of the readings changes the words, never whether they agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The log probabilities [T] of a completion's tokens, in nats, as `who` ("engine", "audit", "trainer") computed
    them."""

    who: str
    logprobs: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far two readings may be apart, in nats: at any `token`, and in the `mean` over a completion's tokens."""

    token: float
    mean: float


def disagreement(readings: Sequence[Reading], tolerance: Tolerance, *, prompt_tokens: int = 0) -> str:
    """Return "" if the readings of one completion agree, else a sentence without full stop: which differ, where, by how
    much, and what both of them say there.

    `prompt_tokens` is the number of tokens before the completion; it turns a token's number into its position.
    """
    for one in readings:
        if said := _unreadable(one, prompt_tokens):
            return said
    for one in readings[1:]:
        if len(one.logprobs) != len(readings[0].logprobs):
            first = readings[0]
            return (
                f"the {first.who} gives log probabilities of {len(first.logprobs)} tokens, "
                f"and the {one.who} of {len(one.logprobs)}"
            )
    for one, other in combinations(readings, 2):
        if said := _apart(one, other, tolerance, prompt_tokens):
            return said
    return ""


def widest(readings: Sequence[Reading]) -> float:
    """Return the largest difference at any token between any two readings of the same length, in nats; NaN if one is
    not finite, 0 if there is nothing to compare."""
    pairs = combinations([one.logprobs for one in readings], 2)
    return max((float(np.max(np.abs(a - b), initial=0.0)) for a, b in pairs), default=0.0)


def _unreadable(one: Reading, prompt_tokens: int) -> str:
    broken = np.flatnonzero(~np.isfinite(one.logprobs))
    if not len(broken):
        return ""
    return (
        f"the {one.who} gives {len(broken)} of {len(one.logprobs)} tokens a log probability that is not finite, first "
        f"{_at(broken[0], prompt_tokens)}: {one.logprobs[broken[0]]}"
    )


def _apart(one: Reading, other: Reading, tolerance: Tolerance, prompt_tokens: int) -> str:
    gaps = np.abs(one.logprobs - other.logprobs)
    if not len(gaps) or (gaps.max() <= tolerance.token and gaps.mean() <= tolerance.mean):
        return ""
    worst, first = int(gaps.argmax()), int(np.flatnonzero(gaps > min(tolerance.mean, gaps.max() / 2))[0])
    return (
        f"the {one.who} and the {other.who} differ by {gaps.mean():.2g} nats in the mean of {len(gaps)} tokens "
        f"(allowed: {tolerance.mean:g}) and by up to {gaps.max():.2g} (allowed: {tolerance.token:g}), first "
        f"{_at(first, prompt_tokens)} and most {_at(worst, prompt_tokens)}: {one.logprobs[worst]:.5f} says the "
        f"{one.who}, {other.logprobs[worst]:.5f} the {other.who}"
    )


def _at(token: int, prompt_tokens: int) -> str:
    return f"at token {int(token) + 1} (position {prompt_tokens + int(token) + 1})"
