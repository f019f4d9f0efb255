"""Find the versions to serve: a model directory, or those in the store of a learner or a node, which may be running.

Nothing is written to a store, and its lock is not taken: a version is complete once its directory has its name, and is
never changed afterwards, only removed.

Invariants:

- A version that is found was complete at that moment; it may be gone a moment later.
- Looking again reads manifests only if the store's versions have changed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Protocol

from node.engine.interface import InstalledVersion
from node.runtime.errors import RunError, UsageError
from node.runtime.formatting import plain_name
from node.state.locate import StateLocation, find_place
from node.state.stored_versions import StoredVersions, stored_versions
from node.tasks.ways.model_ways import ModelWays, read_ways
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.versions.manifest import SignedManifest

SHOWN_VERSIONS = 8
"""Number of versions that a message lists, the newest ones."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A version that can be served. `label`: its name for people; "" for a directory, which has none. `created_s`: Unix
    time in seconds. `signed`: its manifest, if it has one."""

    version: InstalledVersion
    label: str
    directory: Path
    created_s: int
    signed: SignedManifest | None = None


class Source(Protocol):
    """The origin of versions. `name`: the model's name. `keeps`: a directory for copies, or None."""

    name: str
    ways: ModelWays

    @property
    def keeps(self) -> Path | None: ...

    def newest(self) -> Candidate | None: ...

    def find(self, wanted: str) -> Candidate:
        """Return the version of this name. Raises UsageError, which lists the available ones."""


@dataclass(kw_only=True)
class DirectorySource:
    """A model directory, as `volery export` writes it: one version, without a name."""

    directory: Path
    name: str
    ways: ModelWays = field(default_factory=ModelWays)
    keeps: Path | None = None

    def newest(self) -> Candidate | None:
        path = self.directory.resolve()
        version = InstalledVersion(
            name=PolicyVersion(incarnation=0, version=0),
            manifest=ManifestHash(blake2b(os.fsencode(path), digest_size=32).digest()),
        )
        created_s = int((path / "config.json").stat().st_mtime)
        return Candidate(version=version, label="", directory=path, created_s=created_s)

    def find(self, wanted: str) -> Candidate:
        raise UsageError(
            f"--version {wanted}: {self.directory} is a model directory, whose one version has no name. Leave "
            "--version out, or name a swarm.toml or a state directory."
        )


@dataclass(kw_only=True)
class StoreSource:
    """The store of the learner or node at `place`."""

    place: StateLocation
    name: str
    ways: ModelWays = field(default_factory=ModelWays)
    _seen: frozenset[str] = frozenset()
    _stored: StoredVersions = field(default_factory=StoredVersions)

    @property
    def keeps(self) -> Path | None:
        return self.place.state / "serving"

    @property
    def store(self) -> Path:
        return self.place.state / "store"

    def newest(self) -> Candidate | None:
        held = self.look().complete
        return self._candidate(held[-1]) if held else None

    def find(self, wanted: str) -> Candidate:
        held = self.look().complete
        for one in reversed(held):
            if wanted in (str(one.version), str(one.version.version)):
                return self._candidate(one)
        shown = ", ".join(str(one.version) for one in held[-SHOWN_VERSIONS:]) or "none"
        raise UsageError(
            f"--version {wanted}: {self.store} does not hold this version. Held: {shown}. `volery export` can restore "
            "older versions of a learner from a checkpoint."
        )

    def look(self) -> StoredVersions:
        """Return the versions that the store has now. Raises RunError."""
        try:
            names = frozenset(os.listdir(self.store / "versions"))
        except OSError:
            names = frozenset()
        if names != self._seen:
            try:
                self._stored = stored_versions(self.store) if names else StoredVersions()
            except OSError as error:  # the store is being created or removed at this moment
                raise RunError(f"{self.store} cannot be read: {error.strerror}. Try again.") from error
            self._seen = names
        return self._stored

    def _candidate(self, signed: SignedManifest) -> Candidate:
        return Candidate(
            version=InstalledVersion(name=signed.version, manifest=signed.hash),
            label=str(signed.version),
            directory=self.store / "versions" / signed.hash.hex(),
            created_s=signed.manifest.created_ms // 1000,
            signed=signed,
        )


def find_source(target: Path | None, name: str = "") -> Source:
    """Return the source that `target` names: a model directory, a swarm.toml or a state directory. Without a target,
    `find_place` chooses.

    `name`: the model's name; "" for the swarm's name, or the directory's. Raises UsageError, TaskError.
    """
    if target is not None and is_model(target):
        return DirectorySource(directory=target, name=name or target.resolve().name)
    try:
        place = find_place(target)
    except UsageError as error:
        if target is None or target.is_file():
            raise
        raise UsageError(f"{error} A model directory, with config.json and *.safetensors, works as well.") from error
    if place.config is None:
        return StoreSource(place=place, name=name or place.state.resolve().name)
    ways = read_ways(place.config.model)
    return StoreSource(place=place, name=name or plain_name(place.config.swarm.name), ways=ways)


def is_model(path: Path) -> bool:
    """Return whether this directory holds a model and not a swarm."""
    return (path / "config.json").is_file() and any(path.glob("*.safetensors"))
