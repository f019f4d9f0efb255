"""Open a model: from a target on the command line to an engine that serves it, until the scope is left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import trio

from node.config.loader import read_node_config
from node.config.node_config import EngineSection, LimitsSection
from node.engine.factory import open_engine
from node.engine.interface import EngineError, StreamingEngine
from node.engine.selection import choose_engine, look
from node.runtime.errors import RunError, UsageError, about_keys_of
from node.runtime.events import EventLog, Fields
from node.serving.kept_versions import VersionGone, open_kept
from node.serving.served_model import ServedModel
from node.serving.sources import Candidate, Source, StoreSource, find_source
from swarm.transport.error_groups import first_cause

FIRST_TRIES = 5
"""A running learner may evict a version while it is being opened. The next newest is then available at once."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """The request of what to serve: the source, the named version ("" follows the newest), and the engine."""

    source: Source
    version: str
    section: EngineSection
    limits: LimitsSection
    why: str

    def first(self) -> Candidate:
        """Return the version to begin with. Raises UsageError, RunError."""
        if self.version:
            return self.source.find(self.version)
        newest = self.source.newest()
        if newest is None:
            assert isinstance(self.source, StoreSource)
            raise RunError(f"{self.source.store} holds no complete version yet. Start its learner or node first.")
        return newest

    def announce(self) -> str:
        """Return the line to show before the load. Without a version, the errors of `first` come here: an engine would
        take seconds to start."""
        self.first()
        return f"Loading on {self.section.kind} ({self.why})."


def prepare(
    target: Path | None,
    *,
    version: str,
    config: Path | None,
    device: str,
    name: str,
    tell: Callable[[str], None],
) -> Opening:
    """Find the source and choose the engine; start nothing. `tell` hears of damaged versions. Raises NodeError."""
    source = find_source(target, name)
    if isinstance(source, StoreSource) and (damaged := source.look().about_damaged):
        tell(damaged)
    settings = read_node_config(config)
    section = settings.engine
    if device:
        try:
            section = msgspec.convert({**msgspec.to_builtins(section), "device": device}, EngineSection)
        except msgspec.ValidationError:
            raise UsageError(f'--device {device}: use "auto", "cpu", "cuda", "cuda:1" or "mps".') from None
    if config is None:
        choice = choose_engine(section, look(section))
    else:
        with about_keys_of(config):
            choice = choose_engine(section, look(section))
    return Opening(source=source, version=version, section=choice.section, limits=settings.limits, why=choice.why)


@asynccontextmanager
async def open_model(opening: Opening, *, tell: Callable[[str], None]) -> AsyncIterator[ServedModel]:
    """Start the engine, load the version, and follow newer ones unless one was named. `tell` receives sentences about
    changes of the version and crashes of the engine. Raises NodeError."""
    events = EventLog()
    events.listen(lambda name, fields: _tell_of_engine(name, fields, tell))
    with open_kept(opening.source.keeps) as kept, first_cause():
        try:
            async with open_engine(opening.section, events, name="engine", limits=opening.limits) as engine:
                assert isinstance(engine, StreamingEngine), "every engine that is opened here streams"
                model = ServedModel(
                    engine=engine,
                    source=opening.source,
                    kept=kept,
                    tell=tell,
                    joins=opening.section.kind == "vllm",
                )
                await _begin(model, opening)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(model.wait_dead)
                    nursery.start_soon(model.run_rounds)
                    if not opening.version and isinstance(opening.source, StoreSource):
                        nursery.start_soon(model.follow)
                    yield model
                    nursery.cancel_scope.cancel()
        except EngineError as error:
            raise RunError(str(error)) from error


async def _begin(model: ServedModel, opening: Opening) -> None:
    for left in reversed(range(FIRST_TRIES)):
        try:
            await model.begin(await trio.to_thread.run_sync(opening.first))
            return
        except VersionGone:
            if opening.version or not left:
                raise


def _tell_of_engine(name: str, fields: Fields, tell: Callable[[str], None]) -> None:
    if name == "child_died":
        tell(f"The engine ended ({fields['reason']}) and is being restarted.")
