"""Which version a node's engine serves: the newest that is complete here, installed and proven.

What always holds: what was in service stays in service while another is loaded, and when that cannot be; nothing that
was made with weights is trusted before they were proven to be the version's; the store evicts neither what is in
service nor what is next; while the machine is not lent for long, the engine holds no memory. A version that cannot be
installed is tried again after pauses that grow (`node.rollout_role.patience`), a newer one at once; an engine that is
started again during such a pause does not shorten it, and proves what it has loaded meanwhile, so that no batch waits
for its end.

Loops: `_install` waits for a newer version, or for an engine that was started again; `_free_memory` for a long rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import trio

from node.engine.interface import EngineCrashed, InstalledVersion, InstallFailed, PolicyEngine
from node.engine.probe_check import require_proven
from node.rollout_role.availability import Availability
from node.rollout_role.patience import Arrived, Event, Failed, Patience, Worked
from node.runtime.events import EventLog
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.core.visible import first_line
from protocol.trouble import TroubleKind
from protocol.versions.manifest import SignedManifest
from swarm.store import ChunkStore
from swarm.transport.error_groups import first_cause

FREE_AFTER_S = 60.0
"""So long may a pause be before the engine's memory is freed: loading a model again takes seconds to a minute, and a
short pause should cost no more than it lasts."""


@dataclass(kw_only=True)
class ServingVersion:
    """See the module's paragraph. `in_flight` says what is being fetched; `on_change` is told whenever a version may be
    in service, or trusted, that was not before, and `on_installed` once one is. `happened` is told what
    `patience` is to know.

    `has_freed_memory`: the machine is not lent, and the engine holds no memory.
    """

    engine: PolicyEngine
    store: ChunkStore
    in_flight: Callable[[], ManifestHash | None]
    shift: Availability
    events: EventLog
    on_change: Callable[[], None]
    on_installed: Callable[[], None]
    patience: Patience
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
        """The version in service, None before the first, and while there is none but one that is not what it is
        called."""
        found = self.engine.installed
        return None if found is None or found.manifest in self._disproven else found.name

    def offer(self, signed: SignedManifest) -> None:
        """A version is complete in the store; the newest one is installed next."""
        self._newest = signed
        self._pin()
        self.happened(Arrived(version=signed.version))
        self._arrived.set()
        self._offered.set()

    async def run(self) -> None:
        """Keep the newest version in service until cancelled. Raises EngineError when the engine cannot go on."""
        with first_cause():
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._install)
                nursery.start_soon(self._free_memory)

    async def trusts(self, manifests: Iterable[ManifestHash]) -> bool:
        """Whether these weights are what they are called; waits while that is being found out."""
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
        """Until then, or until a newer version is there. What an engine that is started again has loaded is proven
        meanwhile; once that fails as well, it waits for its turn, and what was made with it is not trusted."""
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
        """Nothing more is found out for now, unless the engine was started again meanwhile."""
        if not self._arrived.is_set():
            self._proving.clear()
            self._stir()

    async def _install_newest(self) -> float | None:
        """Have the newest version in service, and prove first what is, if that is owed; when to try again if either
        failed."""
        newest, newest_s = self._newest, None
        owed_s = await self._prove_owed()
        if newest is not None:
            newest_s = await self._serve(newest)
        return max((at_s for at_s in (owed_s, newest_s) if at_s is not None), default=None)

    async def _prove_owed(self) -> float | None:
        """Prove what is in service, if that is owed and it is not the newest version; when to try again if it failed.

        It says nothing of whether the newest can be installed, whose pauses grow on (`node.rollout_role.patience`)."""
        found, newest = self.engine.installed, self._newest
        if found is None or found.manifest not in self._unproven:
            return None
        if newest is not None and found.manifest == newest.hash:
            return None
        owed = self.store.manifest(found.manifest)
        return None if owed is None else await self._serve(owed, is_owed=True)

    async def _serve(self, signed: SignedManifest, *, is_owed: bool = False) -> float | None:
        """Have this version in service, and proven; None if that is so, or never will be, else when to try again.

        `is_owed`: it is in service already, and a newer one is to be."""
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
        """It could not be installed, or is not what it is called; when to try again, None for never."""
        is_final = signed.hash in self._disproven
        self.happened(
            Failed(kind=TroubleKind.INSTALL, reason=first_line(reason), version=signed.version, is_final=is_final)
        )
        again_s = None if is_final else self.patience.again_s(TroubleKind.INSTALL)
        self.events.emit(
            "install_failed",
            version=str(signed.version),
            reason=first_line(reason),
            again="not again" if again_s is None else f"again in {max(0.0, again_s - trio.current_time()):.0f} s",
        )
        return again_s

    def _prove_again(self) -> None:
        """The engine's process is another one: what it has loaded is proven before anything made with it is signed,
        and what it could not load is loaded as soon as it can."""
        if (found := self.engine.installed) is not None:
            self._unproven.add(found.manifest)
            self._proving.add(found.manifest)
        self._arrived.set()
        self._stir()

    async def _free_memory(self) -> None:
        """While the machine is not lent for longer than `free_after_s`, the engine's memory is its owner's, too.

        Versions that arrive meanwhile wait; the newest is installed when it is lent again.
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
        """Install, unless that was done, and prove. What is disproven is not tried again, and what was in service
        before is again.

        Raises InstallFailed, EngineCrashed.
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
        """Let the store make no room by evicting what is in service, or what will be next; anything else it may."""
        wanted = {self._newest.hash} if self._newest is not None else set()
        if self.engine.installed is not None:
            wanted.add(self.engine.installed.manifest)
        for manifest in wanted - self._pinned:
            self.store.pin(manifest)
        for manifest in self._pinned - wanted:
            self.store.unpin(manifest)
        self._pinned = wanted

    def _keep(self) -> set[ManifestHash]:
        """The version in service, the newest one, what is being fetched, and what its patches start from."""
        keep = {flying} if (flying := self.in_flight()) is not None else set()
        if self.engine.installed is not None:
            keep.add(self.engine.installed.manifest)
        if self._newest is not None:
            keep.add(self._newest.hash)
            keep.update(patch.base_hash for patch in self._newest.manifest.patches)
        return keep

    def _stir(self) -> None:
        """Wake who waits for a version."""
        self._stirred.set()
        self._stirred = trio.Event()
        self.on_change()
