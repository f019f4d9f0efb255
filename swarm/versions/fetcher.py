"""Fetch a whole version by the cheapest route: its own chunks, or patches from versions that are held.

Invariants:

- On every route, a version is complete only after the store has verified every chunk of its files against the manifest.
- A route of patches that fails (a patch is wrong, its base is gone, no peer has it) only costs time: the full route is
  used then.
- The versions inside a chain of patches also become complete and can be served.
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
    """How a version was fetched.

    `num_patches` is 0 for the full route. `fetched` has all bytes by peer, `patch_bytes` the bytes of patches.
    `apply_s` is the time in seconds to apply the patches. `fetched.givers` are those of the version's own chunks;
    chunks of other versions in a chain are left out.
    """

    fetched: Fetched
    num_patches: int = 0
    patch_bytes: int = 0
    apply_s: float = 0.0


@dataclass(kw_only=True)
class VersionFetcher:
    """Fetches versions into a store.

    Args:
        learn: function that asks peers for a manifest by its hash; it returns None if no peer has it.
        trouble: function that is called with a sentence when a route failed.
    """

    store: ChunkStore
    distribution: ChunkExchange
    learn: Callable[[ManifestHash], Awaitable[SignedManifest | None]]
    trouble: Callable[[str], None]

    async def obtain(self, signed: SignedManifest) -> Obtained:
        """Return when `signed` is complete in the store.

        Cancel this to give up; chunks that have arrived stay. Raises the store's errors, Starved, and PeerError if the
        manifest itself is wrong.
        """
        await trio.to_thread.run_sync(self.store.begin, signed)
        with self.store.hold(signed.hash):
            self.distribution.tell_gained(signed)
            fetch = _Fetch()
            try:
                with ExitStack() as pins:
                    for step in await self._choose(signed, pins):
                        await self._take(step, fetch, pins)
            except (PeerError, StoreError, OSError, Starved) as error:
                fetch.num_patches = 0
                self.trouble(f"Version {signed.version} is fetched in full, because a patch failed: {error}")
            fetch.count(await self.distribution.fetch(signed))
            await trio.to_thread.run_sync(self.store.finish, signed.hash)
        return fetch.outcome()

    async def _choose(self, signed: SignedManifest, pins: ExitStack) -> Sequence[Step]:
        """Return the steps of the cheapest route, after asking for manifests that may allow a cheaper one.

        `pins` keeps the base of the first step.
        """
        missing = self.store.missing(signed.hash)
        full_bytes = sum(signed.manifest.chunks[index].size for index in missing)
        learnt: dict[ManifestHash, SignedManifest | None] = {}
        with ExitStack() as candidates:  # pinned, so that none is evicted while peers answer
            complete = {one.hash for one in self.store.versions() if one.complete and self._held(one.hash, candidates)}
            while True:
                route = cheapest(
                    signed,
                    full_bytes=full_bytes,
                    complete=complete,
                    known=lambda name: learnt.get(name) or self.store.manifest(name),
                    lacking=self._lacking,
                )
                promising = next((name for name in route.unknown if name not in learnt), None)
                if promising is None or not complete or len(learnt) == MAX_STEPS:
                    break
                learnt[promising] = await self.learn(promising)
            if route.steps:
                pins.enter_context(self.store.hold(route.steps[0].patch.base_hash))
        return route.steps

    def _held(self, version: ManifestHash, pins: ExitStack) -> bool:
        """Pin the version with `pins`. Return whether it is still in the store."""
        try:
            pins.enter_context(self.store.hold(version))
        except StoreError:
            return False
        return True

    def _lacking(self, manifest: Manifest, chunks: Sequence[int]) -> int:
        refs = [manifest.chunks[index] for index in set(chunks)]
        return sum(ref.size for ref in refs if not self.store.holds(ref.name))

    async def _take(self, step: Step, fetch: _Fetch, pins: ExitStack) -> None:
        """Fetch one patch and make its target's chunks from it.

        `pins` keeps the result of the previous step, then that of this one: no engine uses an intermediate version, so
        it would be evicted otherwise.
        """
        target = step.target
        number = target.manifest.patches.index(step.patch)
        with ExitStack() as made:
            made.enter_context(self.store.hold(step.patch.base_hash))  # so that `begin` does not evict it
            await trio.to_thread.run_sync(self.store.begin, target)
            made.enter_context(self.store.hold(target.hash))
            await trio.to_thread.run_sync(self.store.begin_patch, target.hash, number)
            fetch.count(await self.distribution.fetch(target, step.patch.chunks), patches=1)
            began_s = trio.current_time()
            await trio.to_thread.run_sync(self.store.rebuild, target.hash, number)
            fetch.apply_s += trio.current_time() - began_s
            self.distribution.tell_gained(target)
            await trio.to_thread.run_sync(self.store.finish, target.hash)
            pins.close()
            pins.enter_context(self.store.hold(target.hash))


@dataclass(kw_only=True)
class _Fetch:
    """The bytes that were fetched so far, on the way to one version."""

    by_peer: Counter[PeerId] = field(default_factory=Counter)
    givers: Mapping[int, PeerId] = field(default_factory=dict)
    num_patches: int = 0
    patch_bytes: int = 0
    apply_s: float = 0.0

    def count(self, fetched: Fetched, *, patches: int = 0) -> None:
        self.by_peer.update(fetched.by_peer)
        self.givers = fetched.givers  # the last fetch is always of the version itself
        self.num_patches += patches
        self.patch_bytes += sum(fetched.by_peer.values()) if patches else 0

    def outcome(self) -> Obtained:
        return Obtained(
            fetched=Fetched(by_peer=dict(self.by_peer), givers=self.givers),
            num_patches=self.num_patches,
            patch_bytes=self.patch_bytes,
            apply_s=self.apply_s,
        )
