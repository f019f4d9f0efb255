"""From a base and a patch to the chunks of a version.

What always holds: a chunk is put only after its bytes were found to be those that the manifest names; nothing is
believed of the patch, which its signer may have made wrong, nor of the base's files, which a bad disk may have changed.
One chunk is in memory at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from protocol.core.digest import cid_of
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import Cid
from protocol.patches.chunks import patch_source
from protocol.patches.patch import Rebuilt, apply_patch
from protocol.versions.chunking import source_of
from swarm.store.errors import VersionIncomplete
from swarm.store.version_directory import Version


def rebuild(base: Version, target: Version, number: int) -> int:
    """Make the chunks that `target` lacks from its patch `number` and the files of `base`; return the bytes put.

    Raises PeerError for a patch that is none or makes something else, VersionIncomplete when the disk has lost a part
    of the base or of the patch, OSError.
    """
    manifest = target.manifest
    put = 0
    try:
        with ExitStack() as opened:
            files = [
                source_of(opened.enter_context((base.directory / entry.name).open("rb")), entry.name)
                for entry in base.manifest.files
            ]
            patch = patch_source(manifest, manifest.patches[number], lambda cid: _chunk(target, cid))
            pieces = apply_patch(files, patch, {entry.name: entry.size for entry in manifest.files})
            for index, data in _chunks(target, pieces):
                put += len(data) if target.write(index, data) else 0
    except PeerError:
        if bad := base.verify():
            why = f"{len(bad)} chunks of version {base.signed.version} have gone bad on this disk."
            raise VersionIncomplete(f"{why} They are fetched again when they are needed.") from None
        raise
    return put


def _chunks(target: Version, pieces: Iterator[Rebuilt]) -> Iterator[tuple[int, bytes]]:
    """Yield the chunks that `target` lacks, checked. `pieces` go through each file from beginning to end."""
    manifest = target.manifest
    cuts: Iterator[tuple[int, int]] = iter(())
    index, size = -1, 0
    file, missing, buffer = "", set(target.missing()), bytearray()
    for piece in pieces:
        if piece.file != file:
            file = piece.file
            entry = next(entry for entry in manifest.files if entry.name == file)
            cuts = iter([(index, manifest.chunks[index].size) for index in entry.chunks])
            index, size = next(cuts, (-1, 0))
        buffer += piece.data
        while index >= 0 and len(buffer) >= size:
            data = bytes(memoryview(buffer)[:size])
            del buffer[:size]
            if index in missing:
                missing.discard(index)
                if cid_of(data) != manifest.chunks[index].name:
                    raise PeerError(Fault.BROKEN_PROMISE, f"patch: makes another chunk {index} than the manifest names")
                yield index, data
            index, size = next(cuts, (-1, 0))


def _chunk(target: Version, cid: Cid) -> bytes:
    index = target.index_of(cid)
    data = target.read(index) if index is not None else None
    if data is None:
        raise VersionIncomplete(f"A chunk of a patch to version {target.signed.version} is missing. Fetch it first.")
    return data
