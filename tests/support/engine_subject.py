"""Provide the subject of `check_engine` for an engine with a process and a model."""

from __future__ import annotations

import os
import signal

from node.engine.conformance import Score, Subject
from node.engine.worker_engine import WorkerEngine
from tests.support.node_fixtures import VOCAB_SIZE, Models


def subject_of(engine: WorkerEngine, models: Models, score: Score, tolerance: float = 1e-4) -> Subject:
    """Return the subject for `engine`, which a crash kills; `score` gives the expected log probabilities."""

    async def crash() -> None:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)

    return Subject(
        first=models.first,
        second=models.second,
        bad=models.bad,
        vocab_size=VOCAB_SIZE,
        crash=crash,
        score=score,
        tolerance=tolerance,
    )
