"""Run a trainer that computes nothing: each version is the model that it was given.

    python -m benchmarks.episodes.trainer TRAIN_S BEGIN MODEL VOCABULARY

On two cores a real trainer takes most of the processor, and hides whether nodes generate while a tool works.
"""

from __future__ import annotations

from learner.trainer_api.pipes import claim_pipes

if __name__ == "__main__":
    PIPES = claim_pipes()

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.live.trainer import SleepingTrainer, serve
from learner.trainer_api.requests import AnyRequest, Export, Load
from protocol.core.pipe import Header


@dataclass(kw_only=True)
class StillTrainer(SleepingTrainer):
    """A sleeping trainer whose exports are copies of one model."""

    model: Path
    vocab_size: int

    def _do(self, request: AnyRequest) -> Header:
        match request:
            case Load():
                return {**super()._do(request), "vocab_size": self.vocab_size}
            case Export(directory=directory):
                made = Path(directory)
                made.mkdir(parents=True)
                names = ["config.json", "model.safetensors"]
                for name in names:
                    shutil.copy(self.model / name, made)
                return {"files": names}
            case _:
                return super()._do(request)


if __name__ == "__main__":
    train_s, begin, model, vocab_size = sys.argv[1:]
    SIZE = (Path(model) / "model.safetensors").stat().st_size
    serve(
        StillTrainer(
            train_s=float(train_s), size_bytes=SIZE, begin=Path(begin), model=Path(model), vocab_size=int(vocab_size)
        ),
        *PIPES,
    )
