"""Load a node's teacher into its engine, once more if the engine's process ended meanwhile."""

from __future__ import annotations

from pathlib import Path

from node.engine.interface import TEACHER, EngineCrashed, InstallFailed, ScoringEngine


async def load(engine: ScoringEngine, directory: Path) -> None:
    """Load the teacher into the engine, once more if its process ended. Raises EngineError that says what to do."""
    try:
        try:
            await engine.install(TEACHER, directory)
        except EngineCrashed:
            await engine.install(TEACHER, directory)
    except (InstallFailed, EngineCrashed) as error:
        raise InstallFailed(
            f"[teacher] directory: {directory} cannot be loaded: {error}\nSet another [engine] device, or provide "
            "more memory, then start again."
        ) from error
