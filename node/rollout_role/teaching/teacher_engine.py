"""The teacher of a node, loaded into its engine: once more where the process ended meanwhile."""

from __future__ import annotations

from pathlib import Path

from node.engine.interface import TEACHER, EngineCrashed, InstallFailed, ScoringEngine


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
