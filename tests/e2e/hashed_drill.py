"""Run `volery` with drills that need no torch: the trainer hashes, and so does the engine of players and audits.

python -m tests.e2e.hashed_drill SECONDS_PER_TOKEN drill ...

Invariants:

- Everything else of a drill is as operators run it.
- Two engines draw the same tokens with the same weights, and other tokens with other weights, so audits can find
  cheats.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from node.cli.main import main
from node.commands.drill import swarm as stage
from node.config.node_config import EngineSection
from node.engine.fake import FakeConfig, FakeEngine
from node.engine.interface import GeneratedSpan, Generation, GenerationRequest, InstalledVersion
from node.learner_role import app as app_learner
from node.runtime.events import EventLog
from protocol.core.digest import digest_of
from protocol.core.ids import ManifestHash


class HashingEngine(FakeEngine):
    """A fake engine that draws by the weights; `FakeEngine` draws by the version's name only."""

    _weights = ManifestHash(b"")

    async def install(self, version: InstalledVersion, directory: Path) -> None:
        await super().install(version, directory)
        files = sorted(directory.glob("*.safetensors"))
        self._weights = ManifestHash(digest_of(b"".join(path.read_bytes() for path in files)))

    def _complete(self, version: InstalledVersion, request: GenerationRequest) -> Generation:
        made = super()._complete(InstalledVersion(name=version.name, manifest=self._weights), request)
        return replace(made, spans=(GeneratedSpan(start=0, end=len(made.tokens), version=version),))


@asynccontextmanager
async def open_engine(
    token_s: float, section: EngineSection, events: EventLog, *, name: str, state: Path
) -> AsyncIterator[HashingEngine]:
    """Replace `open_verifying_engine`. A token takes `token_s` seconds."""
    yield HashingEngine(FakeConfig(seconds_per_token=token_s))


if __name__ == "__main__":
    opened = partial(open_engine, float(sys.argv.pop(1)))
    app_learner.open_verifying_engine = stage.open_verifying_engine = opened
    trainer = (sys.executable, "-m", "tests.e2e.hashing_trainer")
    stage.run_learner = partial(app_learner.run_learner, trainer=trainer, trial=False)
    main()
