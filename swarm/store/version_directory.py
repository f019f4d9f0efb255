"""Keep one version on disk: partial -> complete, and from either -> gone.

Its files lie in one directory. The patches that were begun lie next to them under hidden names; a version is complete
without patches. `.have` on disk is a hint: it may be out of date, and its chunks are hashed before it is used.

Invariants:

- A bit of `have` is set only if the chunk is at all its places and was verified there.
- Reading verifies again, so the bit of a chunk that the disk damaged is cleared when that is found.
- The held chunks and the directory of a version change under its own lock. Hashing, reading and writing chunks happen
  outside the lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from enum import Enum
from pathlib import Path

from protocol.core.digest import cid_of
from protocol.core.ids import Cid
from protocol.versions.chunking import ChunkLocation, placements
from protocol.versions.manifest import Manifest, SignedManifest
from swarm.store.durable_io import (
    move_durably,
    opened_to_write,
    preallocate,
    read_once,
    read_regular,
    scratch_path,
    sync_directory,
    write_at,
    write_pieces,
)
from swarm.store.errors import VersionIncomplete, VersionUnknown

PART_SUFFIX = ".part"
HINT_NAME = ".have"
PATCH_PREFIX = ".patch-"
"""Names for the store's own files. Names of model files never begin with a dot
(`protocol.versions.manifest.FILE_NAME`), so they cannot collide."""


class Stage(Enum):
    """The stage of a version, which determines the name of its directory."""

    PARTIAL = "partial"
    COMPLETE = "complete"
    GONE = "gone"


class Version:
    """One version below `parent`. Make one with `create`, `resume` or `trust`.

    Methods raise VersionUnknown after the version is gone, and OSError.
    """

    def __init__(self, signed: SignedManifest, parent: Path, stage: Stage) -> None:
        self.signed = signed
        self.manifest = signed.manifest
        self.stage = stage
        self._parent = parent
        self._at = str(directory_of(parent, signed, stage))
        self._places = placements(signed.manifest)
        self._wanted = [index for index, places in enumerate(self._places) if places]
        for number in range(len(signed.manifest.patches)):
            for index, place in _patch_places(signed.manifest, number):
                self._places[index].append(place)
        self._patches: set[int] = set()
        self._index = {chunk.name: number for number, chunk in enumerate(signed.manifest.chunks)}
        self._have = bytearray(-(-len(self._places) // 8))
        self._lock = threading.Lock()

    @classmethod
    def create(cls, signed: SignedManifest, parent: Path) -> Version:
        """Make the directory of a version without any chunk. Its files get their full size."""
        version = cls(signed, parent, Stage.PARTIAL)
        version._prepare()
        version._write_hint()
        return version

    @classmethod
    def resume(cls, signed: SignedManifest, parent: Path) -> Version:
        """Open a partial directory that a kill left: hash the chunks that its bitmap marks, or all if that is lost."""
        version = cls(signed, parent, Stage.PARTIAL)
        version._find_patches()
        marked = version._read_hint()
        version._prepare()
        version._set(version._intact(marked))
        version._write_hint()  # not earlier: after a kill during hashing, the next start must hash the same chunks
        return version

    @classmethod
    def trust(cls, signed: SignedManifest, parent: Path) -> Version:
        """Open a complete directory without hashing its files; hash only the chunks of its patches."""
        version = cls(signed, parent, Stage.COMPLETE)
        version._find_patches()
        version._set(version._wanted)
        version._set(version._intact(version._patch_chunks()))
        return version

    @property
    def directory(self) -> Path:
        """The directory of the files now."""
        return directory_of(self._parent, self.signed, self.stage)

    @property
    def is_locked(self) -> bool:
        """Whether a thread is changing the version."""
        return self._lock.locked()

    @property
    def have(self) -> bytes:
        """The bitmap of held chunks: bit i % 8 of byte i // 8 is set if chunk i is held. Never waits."""
        return bytes(self._have)

    @property
    def held_bytes(self) -> int:
        """Bytes of the files that are in place; `manifest.total_bytes` if nothing is missing."""
        listed = (index for entry in self.manifest.files for index in entry.chunks)
        return sum(self.manifest.chunks[index].size for index in listed if self._holds(index))

    @property
    def disk_bytes(self) -> int:
        """Bytes that the version takes: all of its files, held or not, and of the patches that were begun."""
        return self.manifest.total_bytes + sum(self.manifest.patches[number].size for number in tuple(self._patches))

    def missing(self) -> list[int]:
        """Return the chunks of files that are not held, ascending. Never waits."""
        return self.lacking(self._wanted)

    def lacking(self, chunks: Iterable[int]) -> list[int]:
        """Return those of `chunks` that are not held. Never waits."""
        return [index for index in chunks if not self._holds(index)]

    def index_of(self, cid: Cid) -> int | None:
        """Return the number of the chunk `cid`, or None if it is not held."""
        index = self._index.get(cid)
        return index if index is not None and self._holds(index) else None

    def write(self, index: int, *parts: bytes | memoryview) -> bool:
        """Write `parts`, which the caller has verified together, to all places of chunk `index`.

        Returns False if there is nothing to do: the chunk is held already, or belongs only to patches that were not
        begun. In a complete version this repairs a chunk that the disk had lost.
        """
        with self._lock:
            self._require_here()
            places = self._places_here(index)
            is_simple = len(places) == 1 and self.stage is Stage.PARTIAL and not self._holds(index)
            handle = os.open(self._path(places[0]), os.O_WRONLY) if is_simple else -1
        if handle < 0:
            return bool(self.write_all({index: parts}))
        try:
            write_pieces(handle, [(places[0].offset, parts)])
        finally:
            os.close(handle)
        with self._lock:
            self._require_here()
            if places == self._places_here(index):
                is_new = not self._holds(index)
                self._mark([index] if is_new else [])
                return is_new
        return bool(self.write_all({index: parts}))  # the chunk has got another place meanwhile

    def write_all(self, chunks: Mapping[int, Sequence[bytes | memoryview]]) -> list[int]:
        """Do what `write` does for several chunks, by their numbers. Return those that were put.

        The lock is not held while the bytes are written. A chunk that gets another place meanwhile is written again.
        """
        put: list[int] = []
        while chunks:
            with self._lock, ExitStack() as opened:
                self._require_here()
                places = {index: self._places_here(index) for index in chunks if not self._holds(index)}
                paths = {self._path(place) for some in places.values() for place in some}
                files = {path: opened.enter_context(opened_to_write(path)) for path in paths}
                in_files = [(self._path(p), p.offset, chunks[index]) for index, some in places.items() for p in some]
                close = opened.pop_all()
            with close:
                for path, handle in files.items():
                    write_pieces(handle, [(offset, parts) for other, offset, parts in in_files if other == path])
                    if self.stage is Stage.COMPLETE:
                        os.fsync(handle)
            with self._lock:
                self._require_here()
                chunks = {index: chunks[index] for index, some in places.items() if some != self._places_here(index)}
                done = [i for i, some in places.items() if some and i not in chunks and not self._holds(i)]
                self._mark(done)
                put += done
        return put

    def has_patch(self, number: int) -> bool:
        """Return whether patch `number` of the manifest was begun."""
        return number in self._patches

    def begin_patch(self, number: int) -> None:
        """Make room for a patch of the manifest, so that its chunks are kept from now on. May be called again."""
        with self._lock:
            self._require_here()
            if number in self._patches:
                return
            entry = self.manifest.patches[number]
            try:
                preallocate(self._patch_path(number), entry.size)
            except BaseException:  # also on interruption, so that half a patch does not stay
                self._patch_path(number).unlink(missing_ok=True)
                raise
            for index, place in _patch_places(self.manifest, number):
                if self._holds(index):  # a file or another patch contains it too
                    write_at(
                        self._patch_path(number), place.offset, self._read_place(index, self._places_here(index)[0])
                    )
            self._patches.add(number)

    def read(self, index: int) -> bytes | None:
        """Return chunk `index`, verified; None if it is not held, or has gone bad on the disk."""
        with self._lock:
            if self.stage is Stage.GONE or not self._holds(index):
                return None
            place = self._places_here(index)[0]
            handle = os.open(self._path(place), os.O_RDONLY)  # stays valid after a rename or an eviction
        data = read_once(handle, place.offset, self.manifest.chunks[index].size)
        if cid_of(data) == self.manifest.chunks[index].name:
            return data
        self._lose([index])
        return None

    def verify(self) -> list[int]:
        """Hash every held chunk. Return those that have gone bad; they are missing from now on."""
        held = [index for index in range(len(self._places)) if self._holds(index)]
        intact = set(self._intact(held))
        bad = [index for index in held if index not in intact]
        self._lose(bad)
        return bad

    def finish(self) -> None:
        """Mark the version as complete: sync its files, then rename its directory. Do nothing for a complete one.

        Raises VersionIncomplete while chunks are missing.
        """
        if self.stage is Stage.PARTIAL and not self.missing():
            # Sync before taking the lock, so that chunks can be read meanwhile and little is left to sync under the
            # lock. If the version is gone, `_require_here` below raises.
            with suppress(FileNotFoundError):
                sync_directory(self.directory)
        with self._lock:
            self._require_here()
            if missing := len(self.missing()):
                raise VersionIncomplete(f"{missing} chunks of version {self.signed.version} are still missing.")
            if self.stage is Stage.COMPLETE:
                return
            # After a kill between here and the rename, the next start hashes all chunks: slow, but correct.
            self._hint_path.unlink(missing_ok=True)
            target = directory_of(self._parent, self.signed, Stage.COMPLETE)
            move_durably(self.directory, target)
            self.stage, self._at = Stage.COMPLETE, str(target)

    def discard(self) -> Path:
        """Hide the version in one step. Return the directory that is left to remove."""
        with self._lock:
            self._require_here()
            remains = scratch_path(self._parent)
            self.directory.rename(remains)
            self.stage = Stage.GONE
            self._have = bytearray(len(self._have))
            return remains

    @property
    def _hint_path(self) -> Path:
        return self.directory / HINT_NAME

    def _require_here(self) -> None:
        if self.stage is Stage.GONE:
            raise VersionUnknown(f"Version {self.signed.version} was evicted. Begin it again if it is still needed.")

    def _find_patches(self) -> None:
        """Find the patches that an earlier process began."""
        for number, entry in enumerate(self.manifest.patches):
            path = self._patch_path(number)
            if path.is_file() and path.stat().st_size == entry.size:
                self._patches.add(number)

    def _patch_chunks(self) -> list[int]:
        """Return the chunks that no file lists, but a patch that was begun."""
        wanted = set(self._wanted)
        return [index for index in range(len(self._places)) if index not in wanted and self._places_here(index)]

    def _places_here(self, index: int) -> list[ChunkLocation]:
        """Return the existing places of a chunk: those in files, and in patches that were begun."""
        if not self._patches and not self.manifest.patches:
            return self._places[index]
        num_files = len(self.manifest.files)
        return [p for p in self._places[index] if p.file < num_files or p.file - num_files in self._patches]

    def _holds(self, index: int) -> bool:
        return bool(self._have[index // 8] >> (index % 8) & 1)

    def _set(self, indices: list[int]) -> None:
        for index in indices:
            self._have[index // 8] |= 1 << (index % 8)

    def _mark(self, indices: Sequence[int]) -> None:
        """Mark chunks, which are at all their places, as held. The caller holds the lock."""
        if not indices:
            return
        have = bytearray(self._have)
        for index in indices:
            have[index // 8] |= 1 << (index % 8)
        first, end = min(indices) // 8, max(indices) // 8 + 1
        with suppress(FileNotFoundError):  # a complete directory has none
            write_at(f"{self._at}/{HINT_NAME}", first, bytes(have[first:end]))
        self._have = have
        if self.stage is Stage.COMPLETE and not self.missing():
            self._hint_path.unlink(missing_ok=True)

    def _lose(self, indices: list[int]) -> None:
        with self._lock:
            if self.stage is Stage.GONE or not indices:
                return
            for index in indices:
                self._have[index // 8] &= ~(1 << (index % 8))
            self._write_hint()  # in a complete directory, this file makes the next start hash again

    def _prepare(self) -> None:
        self.directory.mkdir(exist_ok=True)
        for entry in self.manifest.files:
            preallocate(self.directory / entry.name, entry.size)

    def _write_hint(self) -> None:
        self._hint_path.write_bytes(self._have)

    def _read_hint(self) -> list[int]:
        try:
            hint = read_regular(self._hint_path)
        except FileNotFoundError:
            hint = b""
        here = [index for index in range(len(self._places)) if self._places_here(index)]
        if len(hint) != len(self._have):
            return here
        return [index for index in here if hint[index // 8] >> (index % 8) & 1]

    def _intact(self, indices: list[int]) -> list[int]:
        return [index for index in indices if all(self._matches(index))]

    def _matches(self, index: int) -> Iterator[bool]:
        for place in self._places_here(index):
            yield cid_of(self._read_place(index, place)) == self.manifest.chunks[index].name

    def _read_place(self, index: int, place: ChunkLocation) -> bytes:
        handle = os.open(self._path(place), os.O_RDONLY)
        return read_once(handle, place.offset, self.manifest.chunks[index].size)

    def _path(self, place: ChunkLocation) -> str:
        # A string: building a Path took more time than opening the file.
        num_files = len(self.manifest.files)
        name = self.manifest.files[place.file].name if place.file < num_files else patch_file(place.file - num_files)
        return f"{self._at}/{name}"

    def _patch_path(self, number: int) -> Path:
        return self.directory / patch_file(number)


def directory_of(parent: Path, signed: SignedManifest, stage: Stage) -> Path:
    """Return the directory of a version at `stage`."""
    return parent / (signed.hash.hex() + (PART_SUFFIX if stage is Stage.PARTIAL else ""))


def patch_file(number: int) -> str:
    """Return the name of the file for patch `number` of a manifest, in the version's directory."""
    return f"{PATCH_PREFIX}{number}"


def _patch_places(manifest: Manifest, number: int) -> Iterator[tuple[int, ChunkLocation]]:
    """Yield the chunks of a patch with their places in its file, which counts as another file of the manifest."""
    offset = 0
    for index in manifest.patches[number].chunks:
        yield index, ChunkLocation(file=len(manifest.files) + number, offset=offset)
        offset += manifest.chunks[index].size
