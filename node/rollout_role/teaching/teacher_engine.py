"""The teacher in its engine: loaded once, and asked for the log probabilities of whole groups.

What always holds: what is too much at once for the device is asked in halves; what the engine says is a number for each
token, or an error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from node.engine.interface import (
    TEACHER,
    EngineCrashed,
    EngineError,
    EngineRefused,
    InstallFailed,
    ScoringEngine,
)

Sequences = Sequence[tuple[tuple[int, ...], tuple[int, ...]]]
"""(prompt, completion), in token ids."""


async def load(engine: ScoringEngine, directory: Path) -> None:
    """Have the engine load the teacher; once more when its process ended. Raises EngineError that says what to do."""
    try:
        try:
            await engine.install(TEACHER, directory)
        except EngineCrashed:
            await engine.install(TEACHER, directory)
    except (InstallFailed, EngineCrashed) as error:
        raise InstallFailed(
            f"[teacher] directory: {directory} cannot be loaded: {error}\nGive it another [engine] device, or more "
            "memory; then start again."
        ) from error


async def scores_of(engine: ScoringEngine, sequences: Sequences, temperature: float) -> list[tuple[float, ...]]:
    """The teacher's log probability of each token of each completion. Raises EngineError."""
    try:
        found = await engine.score(sequences, temperature)
    except EngineRefused as refused:
        if refused.kind != "out_of_memory" or len(sequences) == 1:
            raise
        half = len(sequences) // 2
        first = await scores_of(engine, sequences[:half], temperature)
        return first + await scores_of(engine, sequences[half:], temperature)
    if not all(math.isfinite(score) for one in found for score in one):
        raise EngineError("the teacher gave log probabilities that are no numbers: its weights are broken")
    return found
