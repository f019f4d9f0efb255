"""Ask a teacher in an engine for the log probabilities of whole groups.

Invariants:

- A request that is too large for the device's memory is split in halves.
- Every value that is returned is a finite number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from node.engine.interface import EngineError, EngineRefused, ScoringEngine

Sequences = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
"""(prompt, completion), in token ids."""


async def scores_of(engine: ScoringEngine, sequences: Sequences, temperature: float) -> list[tuple[float, ...]]:
    """Return the teacher's log probability of each token of each completion. Raises EngineError."""
    try:
        found = await engine.score(sequences, temperature)
    except EngineRefused as refused:
        if refused.kind != "out_of_memory" or len(sequences) == 1:
            raise
        half = len(sequences) // 2
        first = await scores_of(engine, sequences[:half], temperature)
        return first + await scores_of(engine, sequences[half:], temperature)
    if not all(math.isfinite(score) for one in found for score in one):
        raise EngineError("the teacher's log probabilities are not finite numbers: its weights are broken")
    return found
