"""One version on disk: partial -> complete, and from either -> gone.

What always holds: a bit of `have` is set only when the chunk lies, verified, at all its places, and reading verifies
again, so a bit that the disk lost is cleared when it is found out. `.have` on disk is a hint: it may lag behind, and
is believed only after the chunks were hashed again. Every change happens under the version's own lock; hashing and
reading happen outside.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from protocol.digest import cid_of
from protocol.ids import Cid
from protocol.layout import Place, placements
from protocol.manifest import SignedManifest
from swarm.store.durable import move_durably, preallocate, read_once, scratch_path, sync, write_at
from swarm.store.errors import VersionIncomplete, VersionUnknown

PART_SUFFIX = ".part"
HINT_NAME = ".have"
"""No model file may begin with a dot (`protocol.manifest.FILE_NAME`), so this name is free."""


class Stage(Enum):
    """Where a version is in its life, and how its directory is called."""

    PARTIAL = "partial"
    COMPLETE = "complete"
    GONE = "gone"


class Version:
    """One version below `parent`. Make one with `create`, `resume` or `trust`.

    Methods raise VersionUnknown once the version is gone, and OSError.
    """

    def __init__(self, signed: SignedManifest, parent: Path, stage: Stage) -> None:
        self.signed = signed
        self.manifest = signed.manifest
        self.stage = stage
        self._parent = parent
        self._places = placements(signed.manifest)
        self._index = {chunk.name: number for number, chunk in enumerate(signed.manifest.chunks)}
        self._have = bytearray(-(-len(self._places) // 8))
        self._lock = threading.Lock()

    @classmethod
    def create(cls, signed: SignedManifest, parent: Path) -> Version:
        """Make the directory of a version of which nothing is held, its files at full size."""
        version = cls(signed, parent, Stage.PARTIAL)
        version._prepare()
        version._write_hint()
        return version

    @classmethod
    def resume(cls, signed: SignedManifest, parent: Path) -> Version:
        """Take up a partial directory as a kill left it: hash the chunks that its bitmap marks, all if that is lost."""
        version = cls(signed, parent, Stage.PARTIAL)
        marked = version._read_hint()
        version._prepare()
        version._set(version._intact(marked))
        version._write_hint()  # not before: killed while hashing, the next start must hash as much
        return version

    @classmethod
    def trust(cls, signed: SignedManifest, parent: Path) -> Version:
        """Take a complete directory at its name's word."""
        version = cls(signed, parent, Stage.COMPLETE)
        version._set(version._wanted())
        return version

    @property
    def directory(self) -> Path:
        """Where the files are now."""
        return directory_of(self._parent, self.signed, self.stage)

    @property
    def have(self) -> bytes:
        """Bit i of byte i // 8, least significant first, is set when chunk i is held. Never waits."""
        return bytes(self._have)

    @property
    def held_bytes(self) -> int:
        """Bytes of the files that are in place; all of `manifest.total_bytes` when nothing is missing."""
        chunks = enumerate(self.manifest.chunks)
        return sum(chunk.size * len(self._places[index]) for index, chunk in chunks if self._holds(index))

    def missing(self) -> list[int]:
        """Chunks not held, ascending, without those that no file lists. Never waits."""
        return [index for index in self._wanted() if not self._holds(index)]

    def index_of(self, cid: Cid) -> int | None:
        """The number of the chunk called `cid`, if it is held."""
        index = self._index.get(cid)
        return index if index is not None and self._holds(index) else None

    def write(self, index: int, data: bytes | memoryview) -> bool:
        """Put `data`, which the caller has verified, where chunk `index` belongs; False when there is nothing to do.

        That is when it was there already, or is no part of a file, as a patch's chunk is none. In a complete version
        this repairs a chunk that the disk had lost.
        """
        with self._lock:
            self._require_here()
            if self._holds(index) or not self._places[index]:
                return False
            for place in self._places[index]:
                write_at(self._path(place), place.offset, data)
                if self.stage is Stage.COMPLETE:
                    sync(self._path(place))
            self._mark(index, held=True)
            if self.stage is Stage.COMPLETE and not self.missing():
                self._hint_path.unlink(missing_ok=True)
            return True

    def read(self, index: int) -> bytes | None:
        """Return chunk `index`, verified; None when it is not held, or was held and has gone bad on the disk."""
        with self._lock:
            if self.stage is Stage.GONE or not self._holds(index):
                return None
            place = self._places[index][0]
            handle = os.open(self._path(place), os.O_RDONLY)  # outlives a rename, and an eviction
        data = read_once(handle, place.offset, self.manifest.chunks[index].size)
        if cid_of(data) == self.manifest.chunks[index].name:
            return data
        self._lose([index])
        return None

    def verify(self) -> list[int]:
        """Hash every chunk held; return those that had gone bad, which are missing from now on."""
        held = [index for index in self._wanted() if self._holds(index)]
        intact = set(self._intact(held))
        bad = [index for index in held if index not in intact]
        self._lose(bad)
        return bad

    def finish(self) -> None:
        """Call the version complete: sync its files, then rename its directory. Nothing happens to a complete one.

        Raises VersionIncomplete while chunks are missing.
        """
        with self._lock:
            self._require_here()
            if missing := len(self.missing()):
                raise VersionIncomplete(f"{missing} chunks of version {self.signed.version} are still missing.")
            if self.stage is Stage.COMPLETE:
                return
            # Killed after this line, all chunks are hashed again at the next start: slow, and right.
            self._hint_path.unlink(missing_ok=True)
            move_durably(self.directory, directory_of(self._parent, self.signed, Stage.COMPLETE))
            self.stage = Stage.COMPLETE

    def discard(self) -> Path:
        """Take the version out of sight in one step; return the directory that is left to be removed."""
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
            raise VersionUnknown(f"Version {self.signed.version} was evicted. Begin it again if it is still wanted.")

    def _wanted(self) -> list[int]:
        return [index for index, places in enumerate(self._places) if places]

    def _holds(self, index: int) -> bool:
        return bool(self._have[index // 8] >> (index % 8) & 1)

    def _set(self, indices: list[int]) -> None:
        for index in indices:
            self._have[index // 8] |= 1 << (index % 8)

    def _mark(self, index: int, *, held: bool) -> None:
        byte = self._have[index // 8] & ~(1 << (index % 8)) | held << (index % 8)
        if self._hint_path.exists():
            write_at(self._hint_path, index // 8, bytes([byte]))
        self._have[index // 8] = byte

    def _lose(self, indices: list[int]) -> None:
        with self._lock:
            if self.stage is Stage.GONE or not indices:
                return
            for index in indices:
                self._have[index // 8] &= ~(1 << (index % 8))
            self._write_hint()  # in a complete directory this is what tells the next start to look again

    def _prepare(self) -> None:
        self.directory.mkdir(exist_ok=True)
        for entry in self.manifest.files:
            preallocate(self.directory / entry.name, entry.size)

    def _write_hint(self) -> None:
        self._hint_path.write_bytes(self._have)

    def _read_hint(self) -> list[int]:
        try:
            hint = self._hint_path.read_bytes()
        except FileNotFoundError:
            hint = b""
        if len(hint) != len(self._have):
            return self._wanted()
        return [index for index in self._wanted() if hint[index // 8] >> (index % 8) & 1]

    def _intact(self, indices: list[int]) -> list[int]:
        return [index for index in indices if all(self._matches(index))]

    def _matches(self, index: int) -> Iterator[bool]:
        chunk = self.manifest.chunks[index]
        for place in self._places[index]:
            data = read_once(os.open(self._path(place), os.O_RDONLY), place.offset, chunk.size)
            yield cid_of(data) == chunk.name

    def _path(self, place: Place) -> Path:
        return self.directory / self.manifest.files[place.file].name


def directory_of(parent: Path, signed: SignedManifest, stage: Stage) -> Path:
    """How the directory of a version is called at `stage`."""
    return parent / (signed.hash.hex() + (PART_SUFFIX if stage is Stage.PARTIAL else ""))
