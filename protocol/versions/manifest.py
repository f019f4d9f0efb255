"""Define manifests: the signed list of one policy version's files and chunks.

A manifest lists model files (weights, config, tokenizer, chat template) as ranges of content-addressed chunks, the
tensors inside the weight files, and patches that make these files from those of an earlier version. Manifests are
chained by hash. (incarnation, version) names one manifest only, so two different ones with one name are equivocation.

Invariants, after `open_manifest`:

- The operator certified the signer.
- All tables are consistent with each other.
- File names are plain names of data formats: never code, never a path.
- The sizes of all downloads are known.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import msgspec
from msgspec import Meta

from protocol.core.codec import Bytes32, Bytes36, Message, Millis, decode, encode
from protocol.core.digest import as_cid
from protocol.core.envelope import Envelope, Kind, open_envelope, seal
from protocol.core.errors import Fault, LocalProtocolError, PeerError
from protocol.core.genesis import MAX_CERTIFICATE_BYTES, Authority
from protocol.core.identity import Keypair
from protocol.core.ids import Cid, ManifestHash, PeerId, PolicyVersion
from protocol.core.limits import (
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_MANIFEST_BYTES,
    MAX_NAME_CHARS,
    MAX_PATCHES,
    MAX_TENSOR_RANK,
    MAX_TENSORS,
)

FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\.(safetensors|json|jinja|txt|model)")
"""Data formats that engines read. No directories, no hidden files, no code, no pickle."""

DTYPE_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "U32": 4, "U64": 8,
}  # fmt: skip
"""The names of safetensors dtypes, and the size of one element in bytes."""

ChunkIndex = Annotated[int, Meta(ge=0, lt=MAX_CHUNKS)]
FileIndex = Annotated[int, Meta(ge=0, lt=MAX_FILES)]
FileOffset = Annotated[int, Meta(ge=0, le=MAX_FILE_BYTES)]
Dimension = Annotated[int, Meta(ge=0, lt=1 << 40)]


class ChunkRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One chunk: its content id and its size in bytes. There may be a million, so the garbage collector skips them."""

    cid: Bytes36
    size: Annotated[int, Meta(ge=1, le=MAX_CHUNK_BYTES)]

    @property
    def name(self) -> Cid:
        return Cid(self.cid)


class FileEntry(msgspec.Struct, frozen=True, array_like=True):
    """One file: its chunks (indices into the manifest's chunk table) in order, `size` bytes in all."""

    name: Annotated[str, Meta(max_length=MAX_NAME_CHARS)]
    size: Annotated[int, Meta(ge=0, le=MAX_FILE_BYTES)]
    chunks: Annotated[list[ChunkIndex], Meta(max_length=MAX_CHUNKS)]


class TensorEntry(msgspec.Struct, frozen=True, array_like=True):
    """One tensor: bytes [start, end) of file number `file`, counted from the beginning of the file."""

    name: Annotated[str, Meta(max_length=512)]
    dtype: Annotated[str, Meta(max_length=8)]
    shape: Annotated[list[Dimension], Meta(max_length=MAX_TENSOR_RANK)]
    file: FileIndex
    start: FileOffset
    end: FileOffset


class PatchEntry(msgspec.Struct, frozen=True, array_like=True):
    """One patch: its chunks, `size` bytes in all, make the manifest's files from those of the version `base`."""

    base: Bytes32
    size: Annotated[int, Meta(ge=1, le=MAX_FILE_BYTES)]
    chunks: Annotated[list[ChunkIndex], Meta(max_length=MAX_CHUNKS)]

    @property
    def base_hash(self) -> ManifestHash:
        return ManifestHash(self.base)


class Manifest(Message, frozen=True, kw_only=True):
    """One policy version. `previous` is the hash of the manifest before it, empty for the first of a swarm.

    The files are the version. Patches are optional other ways to get the same chunks.
    """

    version: PolicyVersion
    previous: Annotated[bytes, Meta(max_length=32)] = b""
    created_ms: Millis
    certificate: Annotated[bytes, Meta(max_length=MAX_CERTIFICATE_BYTES)]
    files: Annotated[list[FileEntry], Meta(max_length=MAX_FILES)]
    chunks: Annotated[list[ChunkRef], Meta(max_length=MAX_CHUNKS)]
    tensors: Annotated[list[TensorEntry], Meta(max_length=MAX_TENSORS)]
    patches: Annotated[list[PatchEntry], Meta(max_length=MAX_PATCHES)] = msgspec.field(default_factory=list)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files together, without patches: the largest download of a peer that holds nothing."""
        return sum(entry.size for entry in self.files)


@dataclass(frozen=True, kw_only=True)
class SignedManifest:
    """A manifest that was checked: its bytes as sent, its hash, its signer, and its contents."""

    raw: bytes
    hash: ManifestHash
    signer: PeerId
    manifest: Manifest

    @cached_property
    def parameters(self) -> int:
        """Number of elements of all tensors together."""
        return sum(math.prod(tensor.shape) for tensor in self.manifest.tensors)

    @property
    def version(self) -> PolicyVersion:
        return self.manifest.version


def sign_manifest(learner: Keypair, authority: Authority, manifest: Manifest) -> SignedManifest:
    """Sign and return `manifest`. Raise LocalProtocolError if no reader would accept it."""
    raw = seal(learner, authority.swarm, Kind.MANIFEST, encode(manifest))
    try:
        return open_manifest(raw, authority, now_ms=manifest.created_ms)
    except PeerError as error:
        raise LocalProtocolError(error.detail) from error


def open_manifest(raw: bytes, authority: Authority, *, now_ms: int | None = None) -> SignedManifest:
    """Return the manifest in `raw`.

    The signer's certificate must be valid at `now_ms`. Leave that out for a manifest of the past: then it must be valid
    at the manifest's own date. Raises PeerError.
    """
    envelope: Envelope = open_envelope(raw, kind=Kind.MANIFEST, swarm=authority.swarm, limit=MAX_MANIFEST_BYTES)
    manifest: Manifest = decode(Manifest, envelope.payload, MAX_MANIFEST_BYTES)
    authority.require_learner(envelope, manifest.certificate, manifest.created_ms if now_ms is None else now_ms)
    require_consistent(manifest)
    return SignedManifest(raw=raw, hash=ManifestHash(envelope.digest), signer=envelope.signer, manifest=manifest)


def require_consistent(manifest: Manifest) -> None:
    """Raise PeerError(MALFORMED), naming the entry, unless the tables of `manifest` are consistent."""
    if manifest.previous and len(manifest.previous) != 32:
        raise _malformed("previous is neither empty nor a hash")
    cids: set[bytes] = set()
    for chunk in manifest.chunks:
        as_cid(chunk.cid)
        if chunk.cid in cids:
            raise _malformed(f"chunk {chunk.cid.hex()} is listed twice")
        cids.add(chunk.cid)
    names: set[str] = set()
    for entry in manifest.files:
        _require_file(entry, manifest.chunks)
        # On some file systems `Model.json` and `model.json` are the same file: one would overwrite the other.
        if entry.name.lower() in names:
            raise _malformed(f"file {entry.name} is listed twice")
        names.add(entry.name.lower())
    tensors: set[str] = set()
    for tensor in manifest.tensors:
        _require_tensor(tensor, manifest.files)
        if tensor.name in tensors:
            raise _malformed(f"tensor {tensor.name} is listed twice")
        tensors.add(tensor.name)
    bases: set[bytes] = set()
    for patch in manifest.patches:
        _require_chunks(f"the patch from {patch.base.hex()[:8]}", patch, manifest.chunks)
        if patch.base in bases:
            raise _malformed(f"two patches from {patch.base.hex()[:8]} are listed")
        bases.add(patch.base)


def is_safe_file_name(name: str) -> bool:
    """Return whether a model file of this name may be published: a plain name with the suffix of a data format."""
    return FILE_NAME.fullmatch(name) is not None


def _require_file(entry: FileEntry, chunks: list[ChunkRef]) -> None:
    if not is_safe_file_name(entry.name):
        raise _malformed(f"file name {entry.name!r} is not that of a data file")
    _require_chunks(f"file {entry.name}", entry, chunks)


def _require_chunks(what: str, entry: FileEntry | PatchEntry, chunks: list[ChunkRef]) -> None:
    if any(not 0 <= index < len(chunks) for index in entry.chunks):
        raise _malformed(f"{what} names a chunk that is not listed")
    if sum(chunks[index].size for index in entry.chunks) != entry.size:
        raise _malformed(f"the chunks of {what} do not add up to {entry.size} bytes")


def _require_tensor(tensor: TensorEntry, files: list[FileEntry]) -> None:
    if not 0 <= tensor.file < len(files) or not tensor.start <= tensor.end <= files[tensor.file].size:
        raise _malformed(f"tensor {tensor.name} lies outside its file")
    if tensor.dtype not in DTYPE_BYTES:
        raise _malformed(f"tensor {tensor.name} has the unknown dtype {tensor.dtype!r}")
    size = math.prod(tensor.shape, start=DTYPE_BYTES[tensor.dtype])
    if size != tensor.end - tensor.start:
        raise _malformed(f"tensor {tensor.name} has {tensor.end - tensor.start} bytes, but its shape needs {size}")


def _malformed(detail: str) -> PeerError:
    return PeerError(Fault.MALFORMED, f"manifest: {detail}")
