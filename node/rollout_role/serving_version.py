"""Keep the newest version that is complete here in service: installed in the engine and proven.

A version that cannot be installed is tried again after growing pauses (`node.rollout_role.retry_policy`), a newer one
at once. An engine that is restarted during such a pause does not shorten it. It proves what it has loaded meanwhile, so
that no batch waits for the end of the pause.

Invariants:

- The version in service stays in service while another one is loaded, and if that fails.
- Completions are not trusted before the weights that made them are proven to be the version's.
- The store evicts neither the version in service nor the next one.
- The engine holds no memory while the machine is not lent for long.

Loops: `_install` waits for a newer version or a restarted engine. `_free_memory` waits for a long rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import trio

from node.engine.interface import EngineCrashed, InstalledVersion, InstallFailed, PolicyEngine
from node.engine.probe_check import require_proven
from node.rollout_role.availability import Availability
from node.rollout_role.retry_policy import Arrived, Event, Failed, RetryPolicy, Worked
from node.runtime.events import EventLog
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.core.visible import first_line
from protocol.trouble import TroubleKind
from protocol.versions.manifest import SignedManifest
from swarm.store import ChunkStore
from swarm.transport.error_groups import first_cause

FREE_AFTER_S = 60.0
"""Seconds of a pause after which the engine's memory is freed. Loading a model again takes seconds to a minute, and a
short pause should cost no more time than it lasts."""


@dataclass(kw_only=True)
class ServingVersion:
    """Installs versions in the engine, and knows which one is in service.

    Args:
        in_flight: the version that is being fetched, or None.
        on_change: called whenever a version may have come into service, or become trusted.
        on_installed: called once a version is in service.
        retry_policy: decides when a failed version is tried again.
        happened: called with the events that `retry_policy` must know.
        has_freed_memory: whether the machine is not lent and the engine holds no memory.
    """

    engine: PolicyEngine
    store: ChunkStore
    in_flight: Callable[[], ManifestHash | None]
    shift: Availability
    events: EventLog
    on_change: Callable[[], None]
    on_installed: Callable[[], None]
    retry_policy: RetryPolicy
    happened: Callable[[Event], None]
    free_after_s: float = FREE_AFTER_S
    has_freed_memory: bool = False
    _newest: SignedManifest | None = None
    _proving: set[ManifestHash] = field(default_factory=set)
    _unproven: set[ManifestHash] = field(default_factory=set)
    _disproven: set[ManifestHash] = field(default_factory=set)
    _pinned: set[ManifestHash] = field(default_factory=set)
    _arrived: trio.Event = field(default_factory=trio.Event)
    _offered: trio.Event = field(default_factory=trio.Event)
    _stirred: trio.Event = field(default_factory=trio.Event)
    _loading: trio.Lock = field(default_factory=trio.Lock)

    def __post_init__(self) -> None:
        self.engine.restarted.subscribe(lambda _: self._prove_again())

    @property
    def installed(self) -> PolicyVersion | None:
        """Return the version in service. None before the first, and if the only one is not the version it claims to
        be."""
        found = self.engine.installed
        return None if found is None or found.manifest in self._disproven else found.name

    def offer(self, signed: SignedManifest) -> None:
        """Install this version next: it is complete in the store, and the newest."""
        self._newest = signed
        self._pin()
        self.happened(Arrived(version=signed.version))
        self._arrived.set()
        self._offered.set()

    async def run(self) -> None:
        """Keep the newest version in service until cancelled. Raises EngineError if the engine cannot continue."""
        with first_cause():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._install)
                nursery.start_soon(self._free_memory)

    async def trusts(self, manifests: Iterable[ManifestHash]) -> bool:
        """Return whether these weights are the versions they claim to be. Waits while they are being proven."""
        asked = set(manifests)
        while asked & self._proving:
            await self._stirred.wait()
        return not asked & self._unproven

    async def _install(self) -> None:
        while True:
            await self._arrived.wait()
            async with self._loading:
                self._arrived, self._offered = trio.Event(), trio.Event()
                again_s = await self._install_newest()
                self._settle()
            if again_s is not None:
                await self._pause(again_s)
                self._arrived.set()

    async def _pause(self, until_s: float) -> None:
        """Wait until `until_s`, or until a newer version is complete.

        If the engine is restarted meanwhile, what it has loaded is proven. If that fails as well, it is tried again
        after the pause, and completions made with it are not trusted.
        """
        fails = False
        while not self._offered.is_set() and trio.current_time() < until_s:
            with trio.move_on_at(until_s):
                await self._arrived.wait()
            if self._offered.is_set() or not self._arrived.is_set():
                return
            async with self._loading:
                self._arrived = trio.Event()
                if not fails and (owed_s := await self._prove_owed()) is not None:
                    until_s, fails = max(until_s, owed_s), True
                self._settle()

    def _settle(self) -> None:
        """Note that no proof is under way, unless the engine was restarted meanwhile."""
        if not self._arrived.is_set():
            self._proving.clear()
            self._stir()

    async def _install_newest(self) -> float | None:
        """Prove the version in service if it needs that, then bring the newest into service.

        Returns when to try again if either failed.
        """
        newest, newest_s = self._newest, None
        owed_s = await self._prove_owed()
        if newest is not None:
            newest_s = await self._serve(newest)
        return max((at_s for at_s in (owed_s, newest_s) if at_s is not None), default=None)

    async def _prove_owed(self) -> float | None:
        """Prove the version in service, if it needs that and is not the newest.

        Returns when to try again if it failed. Success does not show that the newest can be installed, so the pauses of
        that one keep growing (`node.rollout_role.retry_policy`).
        """
        found, newest = self.engine.installed, self._newest
        if found is None or found.manifest not in self._unproven:
            return None
        if newest is not None and found.manifest == newest.hash:
            return None
        owed = self.store.manifest(found.manifest)
        return None if owed is None else await self._serve(owed, is_owed=True)

    async def _serve(self, signed: SignedManifest, *, is_owed: bool = False) -> float | None:
        """Bring this version into service and prove it.

        Returns None if that succeeded, or never will, otherwise when to try again. `is_owed`: it is in service already,
        and a newer version comes next.
        """
        found, wanted = self.engine.installed, signed.hash
        is_served = found is not None and found.manifest == wanted and wanted not in self._unproven
        if is_served or wanted in self._disproven:
            return None
        version = InstalledVersion(name=signed.version, manifest=signed.hash)
        began = trio.current_time()
        try:
            await self._bring_into_service(version, signed)
        except (InstallFailed, EngineCrashed) as error:
            return self._fail(signed, str(error))
        seconds = round(trio.current_time() - began, 3)
        self.events.emit("version_installed", version=str(version.name), seconds=seconds)
        if not is_owed:
            self.happened(Worked(kind=TroubleKind.INSTALL))
        self.on_installed()
        self._pin()
        self._stir()
        await trio.to_thread.run_sync(self.store.evict, self._keep())
        return None

    def _fail(self, signed: SignedManifest, reason: str) -> float | None:
        """Note that a version could not be installed, or is not the version it claims to be.

        Returns when to try again, None for never.
        """
        is_final = signed.hash in self._disproven
        self.happened(
            Failed(kind=TroubleKind.INSTALL, reason=first_line(reason), version=signed.version, is_final=is_final)
        )
        again_s = None if is_final else self.retry_policy.again_s(TroubleKind.INSTALL)
        self.events.emit(
            "install_failed",
            version=str(signed.version),
            reason=first_line(reason),
            again="not again" if again_s is None else f"again in {max(0.0, again_s - trio.current_time()):.0f} s",
        )
        return again_s

    def _prove_again(self) -> None:
        """Note that the engine was restarted.

        The version that it has loaded is proven before any completion made with it is signed. A version that it could
        not load is loaded as soon as possible.
        """
        if (found := self.engine.installed) is not None:
            self._unproven.add(found.manifest)
            self._proving.add(found.manifest)
        self._arrived.set()
        self._stir()

    async def _free_memory(self) -> None:
        """Free the engine's memory whenever the machine is not lent for longer than `free_after_s`.

        Versions that arrive meanwhile wait. The newest is installed when the machine is lent again.
        """
        while True:
            await self.shift.wait_off()
            with trio.move_on_after(self.free_after_s):
                await self.shift.wait_on()
                continue
            async with self._loading:
                await self.engine.rest()
                self.has_freed_memory = True
                self.events.emit("engine_rests")
                self._pin()
                await self.shift.wait_on()
                self.engine.wake()
                self.has_freed_memory = False
                self.events.emit("engine_wakes")
                self._arrived.set()
                self._offered.set()

    async def _bring_into_service(self, version: InstalledVersion, signed: SignedManifest) -> None:
        """Install the version unless it is installed, and prove it.

        A version that is disproven is not tried again, and the one before it is installed again. Raises InstallFailed
        and EngineCrashed.
        """
        before = self.engine.installed
        self._proving.add(signed.hash)
        self._unproven.add(signed.hash)
        try:
            if before != version:
                await self.engine.install(version, self.store.directory(signed.hash))
            try:
                await require_proven(self.engine, signed)
            except InstallFailed:
                self._disproven.add(signed.hash)
                if before is not None and before != version:
                    await self.engine.install(before, self.store.directory(before.manifest))
                raise
            self._unproven.discard(signed.hash)
        finally:
            self._proving.discard(signed.hash)
            self._stir()

    def _pin(self) -> None:
        """Pin the version in service and the next one, so that the store evicts only others."""
        wanted = {self._newest.hash} if self._newest is not None else set()
        if self.engine.installed is not None:
            wanted.add(self.engine.installed.manifest)
        for manifest in wanted - self._pinned:
            self.store.pin(manifest)
        for manifest in self._pinned - wanted:
            self.store.unpin(manifest)
        self._pinned = wanted

    def _keep(self) -> set[ManifestHash]:
        """Return the versions to keep: in service, newest, being fetched, and the bases of the newest one's patches."""
        keep = {flying} if (flying := self.in_flight()) is not None else set()
        if self.engine.installed is not None:
            keep.add(self.engine.installed.manifest)
        if self._newest is not None:
            keep.add(self._newest.hash)
            keep.update(patch.base_hash for patch in self._newest.manifest.patches)
        return keep

    def _stir(self) -> None:
        """Wake the tasks that wait for a version."""
        self._stirred.set()
        self._stirred = trio.Event()
        self.on_change()
