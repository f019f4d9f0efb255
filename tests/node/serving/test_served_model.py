"""Versions that come while completions run: which completion goes on with which, and failed ones are not retried."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from node.engine.fake import FakeConfig, open_fake_engine
from node.engine.interface import InstalledVersion
from node.runtime.errors import NodeError, UsageError
from node.serving.completion import Piece, Wish, complete
from node.serving.kept_versions import KeptVersions
from node.serving.served_model import ServedModel, VersionLeft
from node.serving.sources import Candidate
from node.tasks.ways.model_ways import ModelWays
from protocol.core.ids import ManifestHash, PolicyVersion
from tests.support.serving import write_nominal_model


@dataclass(kw_only=True)
class Versions:
    """A source of versions without manifests."""

    directory: Path
    number: int = 1
    name: str = "m"
    ways: ModelWays = field(default_factory=ModelWays)
    keeps: Path | None = None

    def newest(self) -> Candidate | None:
        version = InstalledVersion(name=PolicyVersion(1, self.number), manifest=ManifestHash(bytes([self.number]) * 32))
        return Candidate(
            version=version, label=f"1.{self.number}", directory=self.directory / str(self.number), created_s=0
        )

    def find(self, wanted: str) -> Candidate:
        raise UsageError(wanted)


@pytest.fixture
def versions(tmp_path: Path) -> Versions:
    for number in (1, 2, 3):
        write_nominal_model(tmp_path / str(number))
    return Versions(directory=tmp_path)


async def at_once(do: Callable[..., Any], *arguments: Any) -> Any:
    """Virtual time does not wait for threads."""
    return do(*arguments)


@asynccontextmanager
async def opened(versions: Versions, told: list[str]) -> AsyncIterator[ServedModel]:
    async with open_fake_engine(FakeConfig(seconds_per_token=0.1)) as engine, trio.open_nursery() as nursery:
        model = ServedModel(
            engine=engine, source=versions, kept=KeptVersions(root=None), tell=told.append, offload=at_once
        )
        newest = versions.newest()
        assert newest is not None
        await model.begin(newest)
        nursery.start_soon(model.run_rounds)
        nursery.start_soon(model.follow)
        yield model
        nursery.cancel_scope.cancel()


@dataclass
class Made:
    """Which versions made a completion, and how it ended."""

    labels: list[str] = field(default_factory=list)
    tokens: int = 0
    has_left: bool = False

    async def take(self, piece: Piece) -> None:
        self.tokens = piece.made
        if piece.served.label not in self.labels:
            self.labels.append(piece.served.label)


async def make(model: ServedModel, made: Made, tokens: int, label: str = "") -> None:
    wish = Wish(prompt=(4, 5), max_tokens=tokens, temperature=0.0, seed=0, label=label)
    try:
        await complete(model, wish, made.take)
    except VersionLeft:
        made.has_left = True


async def test_short_completions_keep_their_version_and_long_ones_go_on(
    versions: Versions, autojump_clock: MockClock
) -> None:
    told: list[str] = []
    short, long, named, late = Made(), Made(), Made(), Made()
    async with opened(versions, told) as model:
        object.__setattr__(model.served.codec, "stop_ids", frozenset())  # which would end them by chance
        async with trio.open_nursery() as nursery:
            nursery.start_soon(make, model, short, 100)
            nursery.start_soon(make, model, long, 900)
            nursery.start_soon(make, model, named, 900, "1.1")
            await trio.sleep(1)
            versions.number = 2
            await trio.sleep(5)
            assert model.served.label == "1.1"
            nursery.start_soon(make, model, late, 10)
        assert model.served.label == "1.2"
    assert (short.labels, short.tokens) == (["1.1"], 100)
    assert (long.labels, long.tokens) == (["1.1", "1.2"], 900)
    assert named.labels == ["1.1"]
    assert named.has_left
    assert late.labels == ["1.1"], "nobody waits for a version"
    assert told == ["Now serving version 1.2, no longer 1.1."]


async def test_what_cannot_be_loaded_leaves_the_one_before(versions: Versions, autojump_clock: MockClock) -> None:
    told: list[str] = []
    async with opened(versions, told) as model:
        (versions.directory / "2" / "tokenizer.json").write_text("{")
        versions.number = 2
        await trio.sleep(30)
        (versions.directory / "3" / "model.safetensors").unlink()
        versions.number = 3
        await trio.sleep(30)
        assert model.served.label == "1.1"
        made = Made()
        await make(model, made, 5)
        assert made.labels == ["1.1"]
    assert len(told) == 2, "each is tried once"
    assert "tokenizer.json" in told[0]


async def test_a_first_version_that_cannot_be_loaded_is_an_error(versions: Versions) -> None:
    shutil.rmtree(versions.directory / "1")
    async with open_fake_engine(FakeConfig()) as engine:
        model = ServedModel(engine=engine, source=versions, kept=KeptVersions(root=None), tell=print)
        newest = versions.newest()
        assert newest is not None
        with pytest.raises(NodeError, match=str(versions.directory)):
            await model.begin(newest)
