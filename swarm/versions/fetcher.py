"""A version brought here whole, by the cheapest road: its own chunks, or patches from versions that are held.

What always holds: a version is complete only when the store found every chunk of its files to be what the manifest
names, whichever road was taken; a road by patches that fails (a patch is wrong, its base is gone, nobody has it) costs
time and nothing else, since the full road remains and is then taken. Versions between, which a chain of patches leads
through, become complete as well and can be served.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import trio

from protocol.core.errors import PeerError
from protocol.core.ids import ManifestHash, PeerId
from protocol.versions.manifest import Manifest, SignedManifest
from swarm.store import ChunkStore, StoreError
from swarm.transfer.exchange import ChunkExchange
from swarm.transfer.fetch import Fetched, Starved
from swarm.versions.patch_routes import MAX_STEPS, Step, cheapest


@dataclass(frozen=True, kw_only=True)
class Obtained:
    """How a version came: by `num_patches` patches, 0 for the full road; all bytes by peer, and those of patches; and
    how long the patches took to apply once they were here.

    `fetched.givers` are of the version's own chunks: those of versions that a chain led through are left out.
    """

    fetched: Fetched
    num_patches: int = 0
    patch_bytes: int = 0
    apply_s: float = 0.0


@dataclass(kw_only=True)
class VersionFetcher:
    """See the module's paragraph.

    Args:
        learn: asks around for the manifest of that hash; None when nobody has it.
        trouble: told, in a sentence, of a road that failed.
    """

    store: ChunkStore
    distribution: ChunkExchange
    learn: Callable[[ManifestHash], Awaitable[SignedManifest | None]]
    trouble: Callable[[str], None]

    async def obtain(self, signed: SignedManifest) -> Obtained:
        """Return when `signed` is complete in the store.

        Cancel to give up: what has arrived stays. Raises what the store raises, Starved, and PeerError when the
        manifest itself is wrong.
        """
        await trio.to_thread.run_sync(self.store.begin, signed)
        with self.store.hold(signed.hash):
            self.distribution.tell_gained(signed)
            journey = _Journey()
            try:
                with ExitStack() as pins:
                    for step in await self._choose(signed, pins):
                        await self._take(step, journey, pins)
            except (PeerError, StoreError, OSError, Starved) as error:
                journey.num_patches = 0
                self.trouble(f"Version {signed.version} is fetched in full, since a patch was of no use: {error}")
            journey.count(await self.distribution.fetch(signed))
            await trio.to_thread.run_sync(self.store.finish, signed.hash)
        return journey.outcome()

    async def _choose(self, signed: SignedManifest, pins: ExitStack) -> Sequence[Step]:
        """The steps of the cheapest road, after asking for manifests that may lead to a cheaper one. `pins` hold what
        it starts from.
        """
        missing = self.store.missing(signed.hash)
        full_bytes = sum(signed.manifest.chunks[index].size for index in missing)
        learnt: dict[ManifestHash, SignedManifest | None] = {}
        with ExitStack() as candidates:  # or one of them might be gone once the others have answered
            complete = {one.hash for one in self.store.versions() if one.complete and self._held(one.hash, candidates)}
            while True:
                road = cheapest(
                    signed,
                    full_bytes=full_bytes,
                    complete=complete,
                    known=lambda name: learnt.get(name) or self.store.manifest(name),
                    lacking=self._lacking,
                )
                promising = next((name for name in road.unknown if name not in learnt), None)
                if promising is None or not complete or len(learnt) == MAX_STEPS:
                    break
                learnt[promising] = await self.learn(promising)
            if road.steps:
                pins.enter_context(self.store.hold(road.steps[0].patch.base_hash))
        return road.steps

    def _held(self, version: ManifestHash, pins: ExitStack) -> bool:
        """Whether the version is still there, where it stays now."""
        try:
            pins.enter_context(self.store.hold(version))
        except StoreError:
            return False
        return True

    def _lacking(self, manifest: Manifest, chunks: Sequence[int]) -> int:
        refs = [manifest.chunks[index] for index in set(chunks)]
        return sum(ref.size for ref in refs if not self.store.holds(ref.name))

    async def _take(self, step: Step, journey: _Journey, pins: ExitStack) -> None:
        """Fetch one patch and make its target's chunks of it. `pins` hold what the step before has made, and what this
        one makes from then on: nobody works with a version that only leads on to another, so it would be taken away.
        """
        target = step.target
        number = target.manifest.patches.index(step.patch)
        with ExitStack() as made:
            made.enter_context(self.store.hold(step.patch.base_hash))  # making room must not take it away
            await trio.to_thread.run_sync(self.store.begin, target)
            made.enter_context(self.store.hold(target.hash))
            await trio.to_thread.run_sync(self.store.begin_patch, target.hash, number)
            journey.count(await self.distribution.fetch(target, step.patch.chunks), patches=1)
            began_s = trio.current_time()
            await trio.to_thread.run_sync(self.store.rebuild, target.hash, number)
            journey.apply_s += trio.current_time() - began_s
            self.distribution.tell_gained(target)
            await trio.to_thread.run_sync(self.store.finish, target.hash)
            pins.close()
            pins.enter_context(self.store.hold(target.hash))


@dataclass(kw_only=True)
class _Journey:
    """What has been fetched on the way so far."""

    by_peer: Counter[PeerId] = field(default_factory=Counter)
    givers: Mapping[int, PeerId] = field(default_factory=dict)
    num_patches: int = 0
    patch_bytes: int = 0
    apply_s: float = 0.0

    def count(self, fetched: Fetched, *, patches: int = 0) -> None:
        self.by_peer.update(fetched.by_peer)
        self.givers = fetched.givers  # the last fetch is always one of the version itself
        self.num_patches += patches
        self.patch_bytes += sum(fetched.by_peer.values()) if patches else 0

    def outcome(self) -> Obtained:
        return Obtained(
            fetched=Fetched(by_peer=dict(self.by_peer), givers=self.givers),
            num_patches=self.num_patches,
            patch_bytes=self.patch_bytes,
            apply_s=self.apply_s,
        )
