"""The model that an endpoint or a conversation speaks with: an engine, and the version that it has loaded.

A version that comes is installed when no completion runs, or FINISH_S later. Completions that last longer go on with
the new one, unless they asked for the old one by name.

Invariants:
- every span is made by one version, and says which;
- while a version is installed no span begins, and none runs;
- a version that cannot be installed leaves the one before in service, and is not tried again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trio

from node.engine.interface import EngineCrashed, EngineError, GenerationRequest, InstallFailed, StreamingEngine
from node.engine.probe_check import require_proven
from node.runtime.errors import NodeError, RunError, UsageError
from node.serving.kept_versions import KeptVersions
from node.serving.rounds import Rounds, Take
from node.serving.sources import Candidate, Source
from node.tasks.api.interface import TaskError
from node.tasks.tokenizer import TextCodec, limit_of
from protocol.core.visible import first_line

FINISH_S = 30.0
"""So long completions that run may keep the version that they began with: about 1,000 tokens of a large model. New
completions begin meanwhile, with the old version as well."""

FOLLOW_S = 2.0
"""How often a store is looked at: a listing of one directory."""

MAX_CONTEXT = 131_072
"""Tokens of the longest sequence of a model that does not say how long one may be."""

INSTALL_TRIES = 3
"""An engine that ends while it loads is started again, and asked again so often."""


class VersionLeft(Exception):
    """The version that a request named is not served any more."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A version in service, with what is needed to speak with it. `context`: tokens of the longest sequence."""

    candidate: Candidate
    codec: TextCodec
    context: int

    @property
    def label(self) -> str:
        return self.candidate.label


def read_served(candidate: Candidate, directory: Path, source: Source) -> Served:
    """Read the tokenizer and limits of a version. Raises UsageError."""
    try:
        limit = limit_of(directory)
        codec = TextCodec.load(directory, source.ways)
    except TaskError as error:
        mend = "Name another directory."
        if candidate.signed is not None:
            mend = "Start its node or learner once, which mends the store, or name another version."
        raise UsageError(f"{str(error).rstrip('.')}. {mend}") from error
    return Served(candidate=candidate, codec=codec, context=MAX_CONTEXT if limit is None else limit.tokens)


@dataclass(kw_only=True)
class ServedModel:
    """See the module's paragraph. `tell` hears sentences about versions; `joins`: whether the engine takes requests in
    while others run, so that completions need not be cut into spans."""

    engine: StreamingEngine
    source: Source
    kept: KeptVersions
    tell: Callable[[str], None]
    joins: bool = False
    finish_s: float = FINISH_S
    offload: Callable[..., Awaitable[Any]] = trio.to_thread.run_sync
    _served: Served | None = None
    _completions: int = 0
    _spans: int = 0
    _installing: bool = False
    _failed: set[bytes] = field(default_factory=set)
    _changed: trio.Event = field(default_factory=trio.Event)
    _dead: EngineError | None = None
    _died: trio.Event = field(default_factory=trio.Event)
    _rounds: Rounds = field(init=False)

    def __post_init__(self) -> None:
        self._rounds = Rounds(engine=self.engine, num_running=lambda: self._completions)

    @property
    def served(self) -> Served:
        """What is in service."""
        assert self._served is not None, "a ServedModel is obtained from open_model"
        return self._served

    def is_served(self, label: str) -> bool:
        """Whether this is the name of the version in service; "" is that of any."""
        return label in ("", self.served.label)

    def give_up(self, error: EngineError) -> None:
        """The engine cannot go on; `wait_dead` raises."""
        self._dead = self._dead or error
        self._died.set()

    async def run_rounds(self) -> None:
        """Generate what is asked for, until cancelled; needed where the engine does not join requests itself."""
        await self._rounds.run()

    async def generate(self, request: GenerationRequest, take: Take) -> None:
        """Generate one span, inside `span`; `take` hears of all of its tokens. Raises EngineError."""
        if not self.joins:
            await self._rounds.generate(request, take)
            return
        (made,) = await self.engine.generate_streaming([request], lambda _, *told: take(*told))
        take(0, made.tokens, made.logprobs)

    async def wait_dead(self) -> None:
        """Wait until the engine cannot go on, and raise RunError."""
        await self._died.wait()
        raise RunError(str(self._dead))

    # Completions, and the spans that they are made of.

    @asynccontextmanager
    async def completion(self) -> AsyncIterator[Served]:
        """Around one completion; yields what it begins with."""
        self._completions += 1
        try:
            yield self.served
        finally:
            self._completions -= 1
            self._stir()

    @asynccontextmanager
    async def span(self, label: str = "") -> AsyncIterator[Served]:
        """Around one call of the engine, which no install meets; waits while there is one. Raises VersionLeft where
        `label` is not served any more."""
        while self._installing:
            await self._changed.wait()
        if not self.is_served(label):
            raise VersionLeft(label)
        self._spans += 1
        try:
            yield self.served
        finally:
            self._spans -= 1
            self._stir()

    # Versions.

    async def follow(self) -> None:
        """Keep the newest version of the source in service, until cancelled."""
        while True:
            await trio.sleep(FOLLOW_S)
            try:
                newest = await self.offload(self.source.newest)
                if newest is not None and self._is_news(newest):
                    await self._change(newest)
            except (EngineError, NodeError, OSError) as error:
                self.tell(f"A new version cannot be served: {first_line(str(error))}")

    async def begin(self, candidate: Candidate) -> None:
        """Bring the first version into service. Raises NodeError where that cannot be."""
        try:
            await self._change(candidate)
        except (InstallFailed, EngineError) as error:
            raise RunError(f"{candidate.label or candidate.directory} cannot be loaded: {error}") from error

    def _is_news(self, newest: Candidate) -> bool:
        hash = newest.version.manifest
        return hash != self.served.candidate.version.manifest and hash not in self._failed

    async def _change(self, candidate: Candidate) -> None:
        """Install `candidate` and have it in service. Raises NodeError, EngineError, and all is as before."""
        before = self._served
        try:
            directory = await self.offload(self.kept.keep, candidate)
            served = await self.offload(read_served, candidate, directory, self.source)
            with trio.move_on_after(self.finish_s):
                while self._completions:
                    await self._changed.wait()
            await self._install(served, directory, before)
        except BaseException:
            self._failed.add(candidate.version.manifest)
            self.kept.forget(candidate)
            raise
        if before is not None:
            self.kept.forget(before.candidate)
            self.tell(f"Now serving version {served.label}, no longer {before.label}.")

    async def _install(self, served: Served, directory: Path, before: Served | None) -> None:
        self._installing = True
        try:
            while self._spans:
                await self._changed.wait()
            try:
                await self._load(served.candidate, directory)
            except (InstallFailed, EngineCrashed):
                if before is not None:
                    await self._load(before.candidate, self.kept.place_of(before.candidate))
                raise
            self._served = served
        finally:
            self._installing = False
            self._stir()

    async def _load(self, candidate: Candidate, directory: Path) -> None:
        for left in reversed(range(INSTALL_TRIES)):
            try:
                if self.engine.installed != candidate.version:
                    await self.engine.install(candidate.version, directory)
                if candidate.signed is not None:
                    await require_proven(self.engine, candidate.signed)
                return
            except EngineCrashed:
                if not left:
                    raise

    def _stir(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
