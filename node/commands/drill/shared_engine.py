"""Generate for all peers of a drill with one engine. Each request names its weights, and equal ones are batched.

Invariants:

- The weights of the first and of the newest versions are kept, as many as any attack needs, even if the learner's store
  evicts them.
- Every request is answered, or fails with a reason, also if its weights are gone.
- Completions are named after the version that was requested. Claiming another one is up to the caller.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from node.commands.drill.tampered_weights import Variant, write_variant
from node.engine.interface import (
    Claim,
    EngineError,
    EngineRefused,
    Generation,
    GenerationRequest,
    InstalledVersion,
    InstallFailed,
    Verified,
    VerifyingEngine,
)
from protocol.core.digest import digest_of
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.versions.manifest import SignedManifest

KEPT = 16
"""Newest versions that are kept: an attack uses one that is ten behind, while other versions are generated with."""

TOGETHER = 512
"""Completions that the engine is asked for at once."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """A version, and how its weights were changed."""

    version: PolicyVersion
    variant: Variant = Variant.TRUE


@dataclass(kw_only=True, eq=False)
class _Job:
    requests: Sequence[GenerationRequest | Claim]
    done: trio.Event = field(default_factory=trio.Event)
    made: list[Generation] = field(default_factory=list)
    verified: list[Verified] = field(default_factory=list)
    failure: Exception | None = None


@dataclass(kw_only=True)
class SharedEngine:
    """One engine for all peers. `scratch`: directory in which weights are kept."""

    engine: VerifyingEngine
    scratch: Path
    _versions: dict[PolicyVersion, SignedManifest] = field(default_factory=dict)
    _hashes: dict[PolicyVersion, ManifestHash] = field(default_factory=dict)
    """The hash of every published version, so that completions can be named after their weights are gone."""
    _waiting: dict[Weights, list[_Job]] = field(default_factory=dict)
    _stirred: trio.Event = field(default_factory=trio.Event)
    _loaded: Weights | None = None

    @property
    def newest(self) -> PolicyVersion | None:
        """Return the newest version; None if there is none."""
        return max(self._versions, default=None)

    @property
    def first(self) -> PolicyVersion:
        """Return the first version of the run. Its weights are kept as long as there are peers."""
        return min(self._versions)

    def name_version(self, version: PolicyVersion) -> InstalledVersion:
        """Return how a record names the version, also after its weights are gone."""
        return InstalledVersion(name=version, manifest=self._hashes[version])

    def manifest_of(self, version: PolicyVersion) -> SignedManifest:
        """Return the manifest that was published for the version."""
        return self._versions[version]

    def behind(self, version: PolicyVersion, lag: int) -> PolicyVersion:
        """Return the version that is `lag` before this one; the oldest that is kept if there are fewer."""
        known = sorted(one for one in self._versions if one <= version)
        return known[max(0, len(known) - 1 - lag)]

    def list_kept(self, at_least: PolicyVersion) -> list[PolicyVersion]:
        """Return all kept versions from `at_least` on, oldest first."""
        return sorted(one for one in self._versions if one >= at_least)

    async def publish(self, signed: SignedManifest, directory: Path) -> None:
        """Keep a published version, with its files from `directory`. Raises OSError if they are already gone."""
        await trio.to_thread.run_sync(
            write_variant, directory, self._directory(Weights(version=signed.version)), Variant.TRUE
        )
        self._versions[signed.version] = signed
        self._hashes[signed.version] = signed.hash
        for old in sorted(self._versions)[1:-KEPT]:
            if not any(wanted.version == old for wanted in self._waiting):
                del self._versions[old]
                for variant in Variant:
                    gone = self._directory(Weights(version=old, variant=variant))
                    await trio.to_thread.run_sync(partial(shutil.rmtree, gone, ignore_errors=True))
        self._stir()

    async def wait_published(self, at_least: PolicyVersion | None = None) -> PolicyVersion:
        """Return the newest version, as soon as one exists that is not older than `at_least`."""
        while (newest := self.newest) is None or (at_least is not None and newest < at_least):
            await self._stirred.wait()
        return newest

    async def generate(self, requests: Sequence[GenerationRequest], weights: Weights) -> list[Generation]:
        """Return what these weights generate for the requests. Raises EngineError."""
        return (await self._do(requests, weights)).made

    async def score(self, claims: Sequence[Claim], weights: Weights) -> list[Verified]:
        """Return the log probabilities of the claims under these weights. Raises EngineError."""
        return (await self._do(claims, weights)).verified

    async def _do(self, requests: Sequence[GenerationRequest | Claim], weights: Weights) -> _Job:
        job = _Job(requests=requests)
        self._waiting.setdefault(weights, []).append(job)
        self._stir()
        await job.done.wait()
        if job.failure is not None:
            raise job.failure
        return job

    async def run(self) -> None:
        """Serve until cancelled. The weights with the most requests come first, because each change takes time."""
        while True:
            while not self._waiting:
                await self._stirred.wait()
            weights = max(self._waiting, key=lambda one: sum(len(job.requests) for job in self._waiting[one]))
            jobs = self._waiting.pop(weights)
            try:
                await self._serve(weights, jobs)
            except (EngineError, OSError) as error:
                for job in jobs:
                    job.failure = error
            finally:
                for job in jobs:
                    job.done.set()

    async def _serve(self, weights: Weights, jobs: list[_Job]) -> None:
        if weights.version not in self._versions:
            raise EngineRefused("nothing_installed", f"the weights of version {weights.version} are no longer kept")
        installed = self.name_version(weights.version)
        directory = self._directory(weights)
        if not directory.exists():
            try:
                await trio.to_thread.run_sync(
                    write_variant, self._directory(Weights(version=weights.version)), directory, weights.variant
                )
            except (OSError, ValueError) as error:
                raise InstallFailed(str(error)) from error
        # A name of its own: otherwise the engine would see the version that it already has, and load nothing.
        manifest = ManifestHash(digest_of(installed.manifest + weights.variant.value.encode()))
        key = InstalledVersion(name=weights.version, manifest=manifest)
        if self._loaded != weights:
            self._loaded = None
            await self.engine.install(key, directory)
            self._loaded = weights
        drawn = [job for job in jobs if job.requests and isinstance(job.requests[0], GenerationRequest)]
        requests = [one for job in drawn for one in job.requests if isinstance(one, GenerationRequest)]
        made: list[Generation] = []
        for first in range(0, len(requests), TOGETHER):
            made += await self.engine.generate(requests[first : first + TOGETHER])
        rest = iter(made)
        for job in drawn:
            job.made = [next(rest) for _ in job.requests]
        for job in jobs:
            if job not in drawn:
                job.verified = await self.engine.verify([one for one in job.requests if isinstance(one, Claim)])

    def _directory(self, weights: Weights) -> Path:
        return self.scratch / f"{weights.version.incarnation}.{weights.version.version}-{weights.variant.value}"

    def _stir(self) -> None:
        self._stirred.set()
        self._stirred = trio.Event()
