"""How fast an engine is, measured once when a node begins: what the learner goes by until it has seen better.

What always holds: it takes LONGEST_S at most, and a node whose engine fails at it works all the same, without a figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import trio

from node.engine.interface import EngineError, GenerationRequest, PolicyEngine
from protocol.core.limits import MAX_SPEED

LONGEST_S = 5.0
"""A node that has just come can wait as long for its first lease; less would tell little of a slow machine."""

TOKENS = (1, 8, 32)
"""New tokens of each completion, one batch after the other: the first pays for what is only paid once, and the last one
that was done in time counts. A slow machine gets as far as it does."""

MOST_ROLLOUTS = 256
"""Completions at a time, if the node takes so many: beyond it a batch hardly becomes faster, and memory may end."""

PROMPT = (1,) * 16
"""Tokens that every vocabulary has; a prompt's length matters little beside that of a completion."""


async def measure_speed(engine: PolicyEngine, batch_rollouts: int) -> float:
    """Tokens per second that `engine` generates in batches as a node with `batch_rollouts` makes them; 0 if unknown."""
    speed = 0.0
    with trio.move_on_after(LONGEST_S):
        for tokens in TOKENS:
            try:
                made = await engine.generate(list(_requests(min(batch_rollouts, MOST_ROLLOUTS), tokens)))
            except EngineError:
                break
            seconds = math.fsum(generation.generation_s for generation in made)
            speed = sum(len(generation.tokens) for generation in made) / seconds if seconds > 0 else 0.0
            speed = min(speed, float(MAX_SPEED))
    return speed


def _requests(rollouts: int, tokens: int) -> Iterator[GenerationRequest]:
    for seed in range(rollouts):
        yield GenerationRequest(prompt=PROMPT, seed=seed, temperature=1.0, max_new_tokens=tokens, stop_ids=frozenset())
