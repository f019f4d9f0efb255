"""Measure once, when a node starts, how fast its engine is. The learner uses this figure until it has observed more.

Invariants:

- The measurement takes LONGEST_S at most.
- A node whose engine fails in the measurement works all the same, without a figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import trio

from node.engine.interface import EngineError, GenerationRequest, PolicyEngine
from protocol.core.limits import MAX_SPEED

LONGEST_S = 5.0
"""Seconds. A new node can wait this long for its first lease; a shorter measurement says little of a slow machine."""

TOKENS = (1, 8, 32)
"""New tokens of each completion, one batch after the other. The first batch pays one-time costs, and the last batch
that ended in time counts. A slow machine does not reach all of them."""

MOST_ROLLOUTS = 256
"""Completions at once, if the node accepts as many: a larger batch is hardly faster, and may exhaust the memory."""

PROMPT = (1,) * 16
"""Tokens that every vocabulary has. A prompt's length matters little compared with that of a completion."""


async def measure_speed(engine: PolicyEngine, batch_rollouts: int) -> float:
    """Return the tokens per second that `engine` generates in batches of `batch_rollouts`; 0 if unknown."""
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
