"""Choose the active version while the newest cannot be installed, and after an engine's restart."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from node.engine.interface import EngineCrashed, InstalledVersion, InstallFailed
from node.rollout_role.availability import Availability
from node.rollout_role.retry_policy import Event, RetryPolicy
from node.rollout_role.serving_version import ServingVersion
from node.runtime.events import EventLog
from node.runtime.typed_signal import Signal
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.trouble import TroubleKind
from tests.support.learner_fixture import until
from tests.support.quiescence import settled

INSTALL = TroubleKind.INSTALL
OLD, NEW, NEWER = PolicyVersion(1, 0), PolicyVersion(1, 1), PolicyVersion(1, 2)


def hash_of(version: PolicyVersion) -> ManifestHash:
    return ManifestHash(bytes([version.version]) * 32)


def signed(version: PolicyVersion) -> Any:
    """As much of a version's manifest as decides what is in service."""
    return SimpleNamespace(version=version, hash=hash_of(version), manifest=SimpleNamespace(patches=[]))


class Store:
    """Holds every version."""

    def manifest(self, found: ManifestHash) -> Any:
        return signed(PolicyVersion(1, found[0]))

    def directory(self, found: ManifestHash) -> Path:
        return Path(found.hex())

    def evict(self, keep: set[ManifestHash]) -> None:
        pass

    pin = unpin = evict


def fine(version: PolicyVersion) -> None:
    """It works."""


@dataclass
class Engine:
    """Loads and proves versions as it is told: `loads` and `proves` raise what goes wrong."""

    loads: Callable[[PolicyVersion], None] = fine
    proves: Callable[[PolicyVersion], None] = fine
    installed: InstalledVersion | None = None
    restarted: Signal[None] = field(default_factory=Signal)
    installs: list[tuple[float, PolicyVersion]] = field(default_factory=list)
    proofs: list[tuple[float, PolicyVersion]] = field(default_factory=list)

    async def install(self, version: InstalledVersion, directory: Path) -> None:
        await trio.lowlevel.checkpoint()
        self.installs.append((trio.current_time(), version.name))
        self.loads(version.name)
        self.installed = version

    async def prove(self, version: PolicyVersion) -> None:
        await trio.lowlevel.checkpoint()
        self.proofs.append((trio.current_time(), version))
        self.proves(version)

    def crash(self) -> None:
        """Its process ends, and another has loaded the same."""
        self.restarted.emit(None)
        raise EngineCrashed("out of memory")


@dataclass
class World:
    """A service whose engine is `engine`, in virtual time."""

    engine: Engine
    service: ServingVersion
    retry_policy: RetryPolicy
    clock: MockClock

    async def pass_s(self, seconds: float) -> None:
        """So many seconds pass, one by one, since what is waited for is due at some of them."""
        for _ in range(round(seconds)):
            await settled()
            self.clock.jump(1.0)
        await settled()

    def installs_of(self, version: PolicyVersion) -> list[float]:
        """When that version was tried, in seconds since the first try."""
        times = [at_s for at_s, found in self.engine.installs if found == version]
        return [round(at_s - times[0]) for at_s in times]

    async def trusts(self, version: PolicyVersion) -> bool | None:
        """Whether what was made with it is trusted now; None while that is not known."""
        await settled()
        with trio.move_on_after(0):
            return await self.service.trusts([hash_of(version)])
        return None


@asynccontextmanager
async def opened(engine: Engine, clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """The service, with the old version in it."""

    async def prove(found: Engine, version: Any) -> None:
        await found.prove(version.version)

    monkeypatch.setattr("node.rollout_role.serving_version.require_proven", prove)
    retry_policy = RetryPolicy()

    def happened(event: Event) -> None:
        retry_policy.handle(event, trio.current_time())

    made: Any = ServingVersion
    service: ServingVersion = made(
        engine=engine,
        store=Store(),
        in_flight=lambda: None,
        shift=Availability(),
        events=EventLog(),
        on_change=lambda: None,
        on_installed=lambda: None,
        retry_policy=retry_policy,
        happened=happened,
    )
    world = World(engine, service, retry_policy, clock)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(service.run)
        service.offer(signed(OLD))
        await until(lambda: service.installed == OLD)
        await settled()
        yield world
        nursery.cancel_scope.cancel()


def cannot(failing: PolicyVersion) -> Callable[[PolicyVersion], None]:
    """This version cannot be loaded."""

    def loads(version: PolicyVersion) -> None:
        if version == failing:
            raise InstallFailed("attention 'x' is not supported")

    return loads


async def test_an_engine_that_is_started_again_is_proven_while_a_newer_version_waits_for_its_next_try(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(Engine(loads=cannot(NEW)), mock_clock, monkeypatch) as world:
        world.service.offer(signed(NEW))
        await world.pass_s(100)
        assert world.installs_of(NEW) == [0, 5, 15, 35, 75]
        world.engine.restarted.emit(None)
        assert await world.trusts(OLD) is True, "it was proven again, without waiting for the pause to end"
        assert world.installs_of(NEW) == [0, 5, 15, 35, 75], "the failing version must not be tried meanwhile"
        await world.pass_s(60)
        assert world.installs_of(NEW) == [0, 5, 15, 35, 75, 155], "the pause is as long as it was"


async def test_what_a_restarted_engine_has_loaded_and_cannot_prove_is_not_waited_for(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(Engine(loads=cannot(NEW)), mock_clock, monkeypatch) as world:
        world.service.offer(signed(NEW))
        await world.pass_s(100)
        world.engine.proves = lambda version: world.engine.crash()
        before = len(world.engine.proofs)
        world.engine.restarted.emit(None)
        assert await world.trusts(OLD) is False
        assert len(world.engine.proofs) == before + 1, "an engine that ends under each proof is not driven on"
        world.engine.proves = fine
        await world.pass_s(300)
        assert await world.trusts(OLD) is True


async def test_a_newer_version_is_tried_at_once_although_the_engine_was_started_again(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(Engine(loads=cannot(NEW)), mock_clock, monkeypatch) as world:
        world.service.offer(signed(NEW))
        await world.pass_s(100)
        world.engine.restarted.emit(None)
        world.service.offer(signed(NEWER))
        await settled()
        assert world.service.installed == NEWER
        assert await world.trusts(OLD) is True


async def test_the_pause_grows_also_where_each_try_ends_the_engine_and_what_was_in_service_is_proven_again(
    mock_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(loads=lambda version: engine.crash() if version == NEW else None)
    async with opened(engine, mock_clock, monkeypatch) as world:
        world.service.offer(signed(NEW))
        for _ in range(200):
            await world.pass_s(1)
            assert await world.trusts(OLD) is True
        assert world.installs_of(NEW) == [0, 5, 15, 35, 75, 155]
        [told] = world.retry_policy.troubles
        assert (told.kind, told.version, told.times) == (INSTALL, NEW, 6)
        engine.loads = fine
        await world.pass_s(200)
        assert world.service.installed == NEW
        assert world.retry_policy.troubles == []
