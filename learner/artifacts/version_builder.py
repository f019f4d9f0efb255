"""Turn a model directory into chunks, patches and a signed manifest.

Only the files of patches are written here; the store adopts them and the directory afterwards.

Invariants:

- The manifest names exactly the bytes of the directory at that moment.
- Its `previous` is the manifest before it, so versions form a chain.
- A patch is listed only if it is clearly shorter than the chunks that it replaces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from learner.artifacts.chunk_names import ChunkNames, num_threads
from protocol.accounting.tally import TALLY, Tally, TrainedRecord, sign_tally, tree_of
from protocol.core.codec import encode
from protocol.core.genesis import Authority
from protocol.core.identity import Keypair
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.core.limits import MAX_CHUNKS, MAX_MANIFEST_BYTES, MIB
from protocol.core.pipe import Arrays
from protocol.patches.chunks import num_patch_chunks, with_patches
from protocol.patches.patch import encode_patch
from protocol.patches.worker_pool import WorkerPool
from protocol.versions.chunking import MAX_CUT_BYTES, Source, Tables, changed_chunks, file_chunks, source_of
from protocol.versions.manifest import Manifest, SignedManifest, is_safe_file_name, sign_manifest
from protocol.versions.probe import Probed, probe_extension

PATCH_SHARE = 0.75
"""Maximum size of a patch, as a fraction of the bytes that a peer with the base must fetch without it. Rebuilding
reads, hashes and writes a whole model, which saving a few per cent of the bytes does not justify."""


PATCH_LEAST = 1 / 16
"""Minimum fraction of a version's bytes that must be new for a patch to be tried. Making a patch reads both models
whole, which is too much for an adapter of a hundredth of its base model."""

THREADS_FROM_BYTES = 32 * MIB
"""From this size on patches are made on several threads. Each thread takes about 10 MiB. For a smaller model one core
makes both patches in a twentieth of a second."""

LISTED_BYTES = 49
"""Largest number of bytes that a chunk takes in a manifest: 44 in the table, 5 where it is named."""

PATCHES_BYTES = 1024
"""Largest number of bytes for the entries of MAX_PATCHES patches without their chunks: 60 for each."""


@dataclass(frozen=True, kw_only=True)
class Base:
    """An earlier version that patches may start from: its manifest, and the directory with its files."""

    manifest: SignedManifest
    directory: Path


@dataclass(frozen=True, kw_only=True)
class Published:
    """A signed version, the files of its patches in the manifest's order, and the seconds that making them took."""

    signed: SignedManifest
    patches: Sequence[Path]
    patch_s: float


@dataclass(frozen=True, kw_only=True)
class VersionBuilder:
    """The publisher: the learner's key, the swarm, and the operator's certificate for that key. `names` keeps the names
    of chunks from one version to the next.
    """

    learner: Keypair
    authority: Authority
    certificate: bytes
    names: ChunkNames = field(default_factory=ChunkNames)

    def tally(self, version: PolicyVersion, after: int, trained: Iterable[TrainedRecord], now_ms: int) -> bytes:
        """Return the signed tally of the records that training steps `after` + 1 to that of `version` trained on."""
        tree = tree_of(trained)[1]
        tally = Tally(
            version=version,
            after=after,
            records=tree.size,
            root=tree.root,
            issued_ms=now_ms,
            certificate=self.certificate,
        )
        return sign_tally(self.learner, self.authority, tally)

    def publish(
        self,
        directory: Path,
        version: PolicyVersion,
        previous: ManifestHash | None,
        now_ms: int,
        bases: Sequence[Base] = (),
        names: Arrays | None = None,
        probed: Probed | None = None,
        tally: bytes | None = None,
        look: Callable[[], None] = lambda: None,
    ) -> Published:
        """Read `directory` and return its signed manifest.

        Files in `names`, which the trainer named, are not read again (`learner.artifacts.chunk_names`). The manifest
        carries `probed` and `tally`. Patches from `bases` are written beside the directory, into DIRECTORY.patches.
        Files whose names no peer would accept (hidden ones, say) are left out, and so are patches that do not fit into
        the manifest. `look` is called between blocks, and may raise to stop. Raises OSError, LayoutError, and
        LocalProtocolError when the model itself is too large for a manifest.
        """

        def manifest_of(tables: Tables) -> Manifest:
            return Manifest(
                version=version,
                previous=previous or b"",
                created_ms=now_ms,
                certificate=self.certificate,
                files=tables.files,
                chunks=tables.chunks,
                tensors=tables.tensors,
                patches=tables.patches,
                ext={
                    **({} if probed is None else probe_extension(probed)),
                    **({} if tally is None else {TALLY: tally}),
                },
            )

        with ExitStack() as opened:
            files = _open_model(directory, opened)
            self.names.learn(names or {})
            tables = self.names.describe(files, directory, look)
            beside, began_s = patches_of(directory), time.monotonic()
            patches = _write_patches(bases, files, tables, beside, _room_for_patches(manifest_of(tables)), look)
            patch_s = time.monotonic() - began_s
            sources = {
                base: source_of(opened.enter_context(path.open("rb")), path.name) for base, path in patches.items()
            }
            tables = with_patches(tables, sources)
        signed = sign_manifest(self.learner, self.authority, manifest_of(tables))
        return Published(signed=signed, patches=list(patches.values()), patch_s=patch_s)


def patches_of(directory: Path) -> Path:
    """Return the path, beside `directory`, for the patches of its version. It exists only if there are patches."""
    return directory.with_name(f"{directory.name}.patches")


def new_bytes(version: Manifest | Tables, before: Manifest | None) -> int:
    """Return the bytes of chunks that `before` does not have: what a peer that holds it must fetch without patches."""
    fresh = file_chunks(version) if before is None else changed_chunks(before, version)
    return sum(version.chunks[index].size for index in fresh)


def _write_patches(
    bases: Sequence[Base],
    files: Sequence[Source],
    tables: Tables,
    beside: Path,
    room: int,
    look: Callable[[], None],
) -> dict[ManifestHash, Path]:
    """Write into `beside` the patches that are worth it, at most `room` chunks together, and return them by base. If
    there are none, `beside` does not exist afterwards.

    All patches are written in turn, a piece of each. So the system still has each part of the target in memory for all
    of them, and the last segments of one patch leave no core idle.
    """
    patches: dict[ManifestHash, Path] = {}
    with ExitStack() as opened:
        size_bytes = sum(file.size for file in tables.files)
        pool = opened.enter_context(WorkerPool(num_threads() if size_bytes >= THREADS_FROM_BYTES else 1))
        drafts = []
        for base in bases:
            fresh = new_bytes(tables, base.manifest.manifest)
            if fresh < PATCH_LEAST * size_bytes:
                continue
            beside.mkdir(exist_ok=True)
            path = beside / base.manifest.hash.hex()
            limit_bytes = min(round(PATCH_SHARE * fresh), room * MAX_CUT_BYTES)
            pieces = encode_patch(_open_model(base.directory, opened), files, pool)
            drafts.append(_Draft(base.manifest.hash, path, limit_bytes, pieces, opened.enter_context(path.open("wb"))))
        growing = list(drafts)
        while growing:
            look()
            growing = [draft for draft in growing if draft.grow()]
    for draft in drafts:
        if draft.given_up or (num_chunks := num_patch_chunks(draft.num_bytes)) > room:
            draft.path.unlink()
            continue
        patches[draft.base] = draft.path
        room -= num_chunks
    if not patches and beside.exists():
        beside.rmdir()
    return patches


@dataclass
class _Draft:
    """The patch from one base while it is written; abandoned as soon as it has more than `limit_bytes`."""

    base: ManifestHash
    path: Path
    limit_bytes: int
    pieces: Generator[bytes]
    file: BinaryIO
    num_bytes: int = 0
    given_up: bool = False

    def grow(self) -> bool:
        """Write one more piece. Return False when nothing is left to write."""
        piece = next(self.pieces, None)
        if piece is None:
            return False
        self.num_bytes += len(piece)
        self.given_up = self.num_bytes > self.limit_bytes
        if self.given_up:
            self.pieces.close()
        else:
            self.file.write(piece)
        return not self.given_up


def _room_for_patches(manifest: Manifest) -> int:
    """Return how many chunks of patches `manifest`, which has none yet, can list."""
    left_bytes = MAX_MANIFEST_BYTES - len(encode(manifest)) - PATCHES_BYTES
    return max(0, min(MAX_CHUNKS - len(manifest.chunks), left_bytes // LISTED_BYTES))


def _open_model(directory: Path, opened: ExitStack) -> list[Source]:
    """Return the files of a model that may be published."""
    paths = [path for path in sorted(directory.iterdir()) if is_safe_file_name(path.name)]
    return [source_of(opened.enter_context(path.open("rb")), path.name) for path in paths]
