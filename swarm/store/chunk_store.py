"""Hold all versions of a node in one store, which any thread may use.

To make room for a new version, the store evicts versions that are not pinned, but only if that frees enough. Otherwise
it keeps all versions, and StoreFull says how much room is missing. The oldest versions are evicted first, and the bases
of patches to the new version last. Versions and patches count with their full size, in the quota as on the disk, as
soon as they are begun. Manifests, a few MB, do not count.

Invariants:

- Every method is synchronous and may be called from several threads at once (drivers use `trio.to_thread`).
- `have_bitmap`, `missing`, `holds`, `size_of`, `manifest`, `manifest_bytes` and `is_complete` never wait for the disk.
- A pinned version is never evicted.
- Eviction hides a version in one rename.
- A version's directory changes under that version's lock, the set of versions under the store's lock. A thread that
  holds a version's lock never waits for the store's lock.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from protocol.core.digest import cid_of
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.genesis import Authority
from protocol.core.ids import Cid, ManifestHash, PolicyVersion
from protocol.versions.manifest import SignedManifest
from swarm.store.durable_io import (
    link_or_copy,
    lock,
    move_durably,
    read_regular,
    replace_file,
    scratch_path,
    sync_directory,
)
from swarm.store.errors import (
    StoreError,
    StoreFull,
    VersionIncomplete,
    VersionUnknown,
    is_full,
    readable,
    translate_errors,
)
from swarm.store.eviction import NoRoom, Tenant, beyond_quota, dispensable, make_room
from swarm.store.patching import rebuild
from swarm.store.recovery import recover, require_ours
from swarm.store.version_directory import Stage, Version, directory_of, patch_file

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class HeldVersion:
    """The state of a version in the store: `held_bytes` of the `total_bytes` of its files are in place."""

    hash: ManifestHash
    version: PolicyVersion
    complete: bool
    pinned: bool
    held_bytes: int
    total_bytes: int


class ChunkStore(AbstractContextManager["ChunkStore"]):
    """The store of a node's versions; `open` returns one. All methods may raise StoreFull, StoreUnwritable, OSError."""

    def __init__(self, root: Path, handle: int, versions: dict[ManifestHash, Version], quota_bytes: int | None) -> None:
        self.root = root
        self._handle = handle
        self._versions = versions  # replaced, never changed, so that readers need no lock
        self._quota_bytes = quota_bytes
        self._pins: Counter[ManifestHash] = Counter()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, root: Path, authority: Authority, *, quota_bytes: int | None = None) -> ChunkStore:
        """Create or open the store in `root`, and lock it until `close`.

        Hashes the chunks of partial versions. Raises StoreLocked, StoreForeign, StoreUnwritable, StoreFull, and
        StoreError if a file of the store cannot be read.
        """
        with readable(root), translate_errors(root):
            for directory in (root, root / "manifests", root / "versions"):
                directory.mkdir(parents=True, exist_ok=True)
            handle = lock(root / "lock")
            with ExitStack() as stack:
                stack.callback(os.close, handle)
                require_ours(root, authority)
                store = cls(root, handle, recover(root, authority), quota_bytes)
                stack.pop_all()
            return store

    def close(self) -> None:
        """Release the lock, so that another process may open the store. Nothing needs saving; a kill is harmless."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def __exit__(self, *_: object) -> None:
        self.close()

    # Fetching a version: begin, put what is missing, finish.

    def begin(self, signed: SignedManifest) -> int:
        """Make room for a version and copy into it the chunks that other versions hold. Return the bytes copied.

        Does nothing for a complete version, and continues one that was begun. May evict others. Raises StoreFull, and
        leaves no part of the version, if the disk or the quota has no room for all of it.
        """
        with translate_errors(self.root):
            version = self._begin(signed)
            return sum(self._copy(version, index) for index in version.missing())

    def begin_patch(self, manifest: ManifestHash, number: int) -> None:
        """Make room for patch `number` of a version that was begun. Before this call, `put` does not keep its chunks.

        May evict others, so pin the versions that you need. Raises StoreFull, VersionUnknown.
        """
        version = self._require(manifest)
        with translate_errors(self.root):
            size_bytes = 0 if version.has_patch(number) else version.manifest.patches[number].size
            self._with_room(version.signed, size_bytes, lambda: version.begin_patch(number))

    def missing(self, manifest: ManifestHash, chunks: Iterable[int] | None = None) -> list[int]:
        """Return the missing ones of `chunks`, ascending; by default, of all chunks that files list.

        Raises VersionUnknown unless the version was begun.
        """
        version = self._require(manifest)
        return version.missing() if chunks is None else version.lacking(sorted(set(chunks)))

    def rebuild(self, manifest: ManifestHash, number: int) -> int:
        """Make the missing chunks of a version's files from the base and patch `number`. Return the bytes put.

        Base and patch must be complete. Every chunk is checked before it is put. Raises PeerError if the patch makes
        something other than the version, and VersionUnknown or VersionIncomplete if base or patch are not complete.
        """
        target = self._require(manifest)
        base = target.manifest.patches[number].base_hash
        with translate_errors(self.root), self.hold(manifest), self.hold(base):
            self.directory(base)  # raises unless it is complete
            return rebuild(self._require(base), target, number)

    def put(self, manifest: ManifestHash, index: int, data: bytes | memoryview) -> bool:
        """Write chunk `index`. Return False if it is held already, or belongs to no file and no patch that was begun.

        Raises PeerError before anything is written: CORRUPT_CHUNK if `data` is not that chunk, MALFORMED if it is, but
        the manifest states a wrong size. Raises VersionUnknown if the version was evicted meanwhile.
        """
        version = self._require(manifest)
        if not 0 <= index < len(version.manifest.chunks):
            raise LocalProtocolError(f"version {version.signed.version} has no chunk {index}")
        chunk = version.manifest.chunks[index]
        if cid_of(data) != chunk.name:
            raise PeerError(Fault.CORRUPT_CHUNK, f"{len(data)} bytes are not chunk {index} of {version.signed.version}")
        if len(data) != chunk.size:
            raise PeerError(Fault.MALFORMED, f"manifest: chunk {index} has {len(data)} bytes, not {chunk.size}")
        with translate_errors(self.root):
            return version.write(index, data)

    def is_locked(self, manifest: ManifestHash) -> bool:
        """Return whether a thread is changing this version, so that `put` would wait for it. Never waits."""
        version = self._versions.get(manifest)
        return version is not None and version.is_locked

    def finish(self, manifest: ManifestHash) -> Path:
        """Mark a version as complete, on the disk, and return its directory. No chunk may be missing.

        Waits for the disk. May be called again. Raises VersionIncomplete, VersionUnknown.
        """
        version = self._require(manifest)
        with translate_errors(self.root):
            version.finish()
        return version.directory

    def adopt(self, signed: SignedManifest, directory: Path, patches: Sequence[Path] = ()) -> Path:
        """Add the files of `directory`, from which `signed` was made, as a complete version. Return its new directory.

        `patches` are the files of the manifest's patches, in its order. Files are linked, or copied if they are on
        another disk. They are not hashed again, because `get` verifies. The caller may remove `directory`, but must
        never write to its files again. May evict others. Raises StoreFull, and StoreError if a file is missing or has
        another size.
        """
        with translate_errors(self.root):
            if self.is_complete(signed.hash):
                return self.directory(signed.hash)
            staged = scratch_path(self._parent)
            staged.mkdir()
            try:
                for entry in signed.manifest.files:
                    _take_file(directory / entry.name, entry.size, staged / entry.name)
                for number, path in enumerate(patches):
                    _take_file(path, signed.manifest.patches[number].size, staged / patch_file(number))
                sync_directory(staged)  # here rather than under the lock, so that no thread waits
                begun = self._versions.get(signed.hash)
                size_bytes = sum(path.stat().st_size for path in staged.iterdir()) - (begun.disk_bytes if begun else 0)
                return self._with_room(signed, size_bytes, lambda: self._install(signed, staged))
            except BaseException:  # also on interruption, since nothing else removes the staged files
                shutil.rmtree(staged, ignore_errors=True)
                raise

    # Serving and using.

    def get(self, cid: Cid) -> bytes | None:
        """Return a chunk from any version, partial or complete, or None if none holds it.

        Every read verifies the chunk (0.5 ms per MiB), so the store never returns data that a bad disk changed. A bad
        chunk is missing from then on, and can be put again.
        """
        for version in tuple(self._versions.values()):
            index = version.index_of(cid)
            if index is not None and (data := version.read(index)) is not None:
                return data
        return None

    def holds(self, cid: Cid) -> bool:
        """Return whether `get` would find the chunk if the disk is sound."""
        return any(version.index_of(cid) is not None for version in tuple(self._versions.values()))

    def size_of(self, cid: Cid) -> int | None:
        """Return the size of the chunk in bytes, None if it is not held."""
        for version in tuple(self._versions.values()):
            if (index := version.index_of(cid)) is not None:
                return version.manifest.chunks[index].size
        return None

    def have_bitmap(self, manifest: ManifestHash) -> bytes:
        """Return the held chunks of a version, in the bit order of `exchange.Have`; empty if the version is unknown."""
        version = self._versions.get(manifest)
        return version.have if version is not None else b""

    def is_complete(self, manifest: ManifestHash) -> bool:
        """Return whether the version is complete, so that `directory` would return."""
        version = self._versions.get(manifest)
        return version is not None and version.stage is Stage.COMPLETE and not version.missing()

    def directory(self, manifest: ManifestHash) -> Path:
        """Return the directory of a complete version, for an engine to load. Pin the version while it is in use.

        Raises VersionUnknown, and VersionIncomplete, also for a version with a chunk that has gone bad.
        """
        version = self._require(manifest)
        if not self.is_complete(manifest):
            raise VersionIncomplete(f"Version {version.signed.version} is not complete. Fetch its missing chunks.")
        return version.directory

    def verify(self, manifest: ManifestHash) -> list[int]:
        """Hash all held chunks of a version. Return those that have gone bad; they are missing from now on."""
        with translate_errors(self.root):
            return self._require(manifest).verify()

    # Listing, pinning and evicting versions.

    def versions(self) -> list[HeldVersion]:
        """Return all versions, complete and partial, the oldest first."""
        held = [
            HeldVersion(
                hash=name,
                version=version.signed.version,
                complete=self.is_complete(name),
                pinned=self._pins[name] > 0,
                held_bytes=version.held_bytes,
                total_bytes=version.manifest.total_bytes,
            )
            for name, version in self._versions.items()
        ]
        return sorted(held, key=lambda one: (one.version, one.hash))

    def manifest(self, manifest: ManifestHash) -> SignedManifest | None:
        """Return the manifest of a version in the store, complete or not."""
        version = self._versions.get(manifest)
        return version.signed if version is not None else None

    def manifest_bytes(self, manifest: ManifestHash) -> bytes | None:
        """Return the manifest's envelope as it was signed."""
        signed = self.manifest(manifest)
        return signed.raw if signed is not None else None

    def pin(self, manifest: ManifestHash) -> None:
        """Protect a version from eviction until `unpin` was called as often. Raises VersionUnknown."""
        with self._lock:
            self._require(manifest)
            self._pins[manifest] += 1

    def unpin(self, manifest: ManifestHash) -> None:
        """Undo one `pin`."""
        with self._lock:
            if not self._pins[manifest]:
                raise LocalProtocolError(f"version {manifest.hex()[:8]} is not pinned")
            self._pins[manifest] -= 1

    @contextmanager
    def hold(self, manifest: ManifestHash) -> Iterator[None]:
        """Protect a version from eviction inside the `with` block. Raises VersionUnknown."""
        self.pin(manifest)
        try:
            yield
        finally:
            self.unpin(manifest)

    def evict(self, keep: Collection[ManifestHash]) -> list[ManifestHash]:
        """Remove every version, complete or partial, that is neither in `keep` nor pinned. Return their hashes."""
        with translate_errors(self.root):
            with self._lock:
                names = [name for name in self._versions if name not in keep and not self._pins[name]]
                remains = [self._forget(name) for name in names]
            for directory in remains:
                shutil.rmtree(directory)
        return names

    def limit(self, quota_bytes: int) -> None:
        """Set the quota from now on, and evict complete versions beyond it at once, but not the newest.

        Raises StoreUnwritable, OSError; the quota holds then as well.
        """
        with translate_errors(self.root):
            with self._lock:
                self._quota_bytes = quota_bytes
                remains = [self._forget(tenant.name) for tenant in beyond_quota(self._tenants(), quota_bytes)]
            for directory in remains:
                shutil.rmtree(directory)

    # The genesis and the newest announcement, which a node must know before it connects to a peer.

    def remember_genesis(self, raw: bytes) -> None:
        """Keep the swarm's genesis. From now on the store opens for this swarm only."""
        with translate_errors(self.root):
            replace_file(self.root / "genesis", raw)

    def genesis(self) -> bytes | None:
        """Return the stored genesis as it was signed, or None."""
        return _read_if_there(self.root / "genesis")

    def remember_newest(self, raw: bytes) -> None:
        """Keep the newest announcement, so that no peer can present an older one as new after a restart."""
        with translate_errors(self.root):
            replace_file(self.root / "newest", raw)

    def newest(self) -> bytes | None:
        """Return the stored announcement as it was signed, or None. It is not checked again."""
        return _read_if_there(self.root / "newest")

    @property
    def _parent(self) -> Path:
        return self.root / "versions"

    def _require(self, manifest: ManifestHash) -> Version:
        version = self._versions.get(manifest)
        if version is None:
            raise VersionUnknown(
                f"The store does not hold the version with manifest {manifest.hex()[:8]}: it was not fetched, or was "
                "evicted."
            )
        return version

    def _begin(self, signed: SignedManifest) -> Version:
        if (version := self._versions.get(signed.hash)) is not None:
            return version
        return self._with_room(signed, signed.manifest.total_bytes, lambda: self._create(signed))

    def _create(self, signed: SignedManifest) -> Version:
        """Make the directory of a new version. The caller holds the lock."""
        if (version := self._versions.get(signed.hash)) is not None:  # another thread made it
            return version
        # The manifest comes first, because recovery removes a directory without one.
        replace_file(self._manifest_path(signed.hash), signed.raw)
        try:
            version = Version.create(signed, self._parent)
        except BaseException:  # also on interruption, so that half a version does not stay
            shutil.rmtree(directory_of(self._parent, signed, Stage.PARTIAL), ignore_errors=True)
            self._manifest_path(signed.hash).unlink()
            raise
        self._versions = {**self._versions, signed.hash: version}
        return version

    def _with_room(self, signed: SignedManifest, size_bytes: int, make: Callable[[], T]) -> T:
        """Call `make` under the lock when there is room for its `size_bytes` of `signed`, and return its result.

        Evicts versions if necessary. Raises StoreFull or OSError if eviction would not free enough.
        """
        while True:
            with self._lock:
                remains = self._evict_for_quota(signed, size_bytes)
                if not remains:
                    try:
                        return make()
                    except OSError as error:
                        if not (is_full(error) and (remains := self._evict_for_disk(signed, size_bytes))):
                            raise
            for directory in remains:  # outside the lock, so that no thread waits
                shutil.rmtree(directory)

    def _evict_for_quota(self, signed: SignedManifest, size_bytes: int) -> list[Path]:
        """Hide the versions to evict, and return the directories to remove. The caller holds the lock.

        Raises StoreFull.
        """
        if self._quota_bytes is None:
            return []
        going = make_room(self._tenants(signed), size_bytes, quota_bytes=self._quota_bytes, bases=_bases(signed))
        if isinstance(going, NoRoom):
            raise StoreFull(
                f"Version {signed.version} needs {size_bytes} bytes in addition to the {going.staying_bytes} in use, "
                f"but {self.root} may take only {self._quota_bytes}. "
                f"Set [store] quota_gb to {-(-going.needed_bytes // 10**7) / 100:g} or more."
            )
        return [self._forget(tenant.name) for tenant in going]

    def _evict_for_disk(self, signed: SignedManifest, size_bytes: int) -> list[Path]:
        """Hide the next version to evict from a full disk, and return its directory to remove.

        Returns nothing if all versions that may be evicted would not free enough. The caller holds the lock.
        """
        spare = dispensable(self._tenants(signed), _bases(signed))
        enough = shutil.disk_usage(self.root).free + sum(tenant.size_bytes for tenant in spare) >= size_bytes
        return [self._forget(spare[0].name)] if spare and enough else []

    def _tenants(self, signed: SignedManifest | None = None) -> list[Tenant]:
        """Return the versions in the store. `signed`, if it was begun, counts as pinned, so it is not evicted."""
        return [
            Tenant(
                name=name,
                version=version.signed.version,
                size_bytes=version.disk_bytes,
                complete=self.is_complete(name),
                pinned=self._pins[name] > 0 or (signed is not None and name == signed.hash),
            )
            for name, version in self._versions.items()
        ]

    def _copy(self, version: Version, index: int) -> int:
        chunk = version.manifest.chunks[index]
        data = self.get(chunk.name)
        if data is None or len(data) != chunk.size:
            return 0
        return len(data) if version.write(index, data) else 0

    def _install(self, signed: SignedManifest, staged: Path) -> Path:
        """Rename a complete directory to its final name; it replaces a partial one. The caller holds the lock."""
        remains = self._forget(signed.hash) if signed.hash in self._versions else None
        replace_file(self._manifest_path(signed.hash), signed.raw)
        move_durably(staged, directory_of(self._parent, signed, Stage.COMPLETE))
        version = Version.trust(signed, self._parent)
        self._versions = {**self._versions, signed.hash: version}
        if remains is not None:
            shutil.rmtree(remains)
        return version.directory

    def _forget(self, manifest: ManifestHash) -> Path:
        """Hide a version and return the directory to remove. The caller holds the lock."""
        remains = self._versions[manifest].discard()
        self._versions = {name: version for name, version in self._versions.items() if name != manifest}
        self._manifest_path(manifest).unlink(missing_ok=True)
        return remains

    def _manifest_path(self, manifest: ManifestHash) -> Path:
        return self.root / "manifests" / manifest.hex()


def _bases(signed: SignedManifest) -> set[ManifestHash]:
    return {patch.base_hash for patch in signed.manifest.patches}


def _take_file(source: Path, expected: int, target: Path) -> None:
    size = source.stat().st_size if source.is_file() else None
    if size != expected:
        raise StoreError(
            f"{source} should have {expected} bytes, but has {size}. Was it changed after it was published?"
        )
    link_or_copy(source, target)


def _read_if_there(path: Path) -> bytes | None:
    try:
        return read_regular(path)
    except FileNotFoundError:
        return None
