"""Provide small swarms, models and manifests for tests that need something to publish, fetch or store.

Everything is a function of its arguments: the same call gives the same bytes in every process.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol.core.genesis import Authority, certify_learner, found_swarm
from protocol.core.identity import Keypair
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.core.limits import MAX_MILLIS
from protocol.patches.chunks import with_patches
from protocol.patches.patch import encode_patch
from protocol.versions.chunking import Source, placements
from protocol.versions.manifest import DTYPE_BYTES, Manifest, SignedManifest, sign_manifest
from swarm.store import ChunkStore
from tests.support.chunks import describe

CHUNK_BYTES = 256
"""Bytes of a chunk: few, so that small models have many chunks."""

MANY_BYTES = 64
"""Bytes of the smallest chunks there are: for large manifests of small models."""

Tensors = Mapping[str, tuple[str, tuple[int, ...], bytes]]
"""Name to dtype, shape and bytes, in the order of the file."""


@dataclass(frozen=True, kw_only=True)
class SmallSwarm:
    """A swarm with its operator, its learner, and the learner's certificate."""

    operator: Keypair
    learner: Keypair
    authority: Authority
    genesis: bytes
    certificate: bytes

    def publish(
        self,
        files: Mapping[str, bytes],
        *,
        version: int = 1,
        incarnation: int = 1,
        previous: bytes = b"",
        chunk_bytes: int = CHUNK_BYTES,
        patches: Mapping[ManifestHash, bytes] | None = None,
    ) -> SignedManifest:
        """Return the signed manifest of a version made of `files`, offering `patches` by the hash of their base."""
        tables = describe([source(name, data) for name, data in files.items()], chunk_bytes=chunk_bytes)
        offered = {base: source("patch", data) for base, data in (patches or {}).items()}
        tables = with_patches(tables, offered, chunk_bytes=chunk_bytes)
        manifest = Manifest(
            version=PolicyVersion(incarnation, version),
            previous=previous,
            created_ms=min(1_000 + version, MAX_MILLIS),
            certificate=self.certificate,
            files=tables.files,
            chunks=tables.chunks,
            tensors=tables.tensors,
            patches=tables.patches,
        )
        return sign_manifest(self.learner, self.authority, manifest)


def many_chunks(num_chunks: int) -> dict[str, bytes]:
    """Return the files of a model that is cut into so many chunks of MANY_BYTES."""
    return {"model.bin.json": b"".join(number.to_bytes(MANY_BYTES, "big") for number in range(num_chunks))}


def small_swarm(name: str = "small") -> SmallSwarm:
    """Found the swarm called `name`; its keys depend on nothing else."""
    seeds = random.Random(name)
    operator, learner = Keypair(seeds.randbytes(32)), Keypair(seeds.randbytes(32))
    genesis, authority = found_swarm(operator, name=name, created_ms=0, nonce=bytes(16))
    certificate = certify_learner(
        operator, authority, learner=learner.public, not_before_ms=0, not_after_ms=(1 << 53) - 1
    )
    return SmallSwarm(operator=operator, learner=learner, authority=authority, genesis=genesis, certificate=certificate)


def source(name: str, data: bytes) -> Source:
    """Return `data` as a file to publish."""
    return Source(name=name, size=len(data), read=lambda offset, size: data[offset : offset + size])


def safetensors_file(tensors: Tensors, metadata: Mapping[str, str] | None = None) -> bytes:
    """Return a safetensors file, padded as the reference implementation does."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    body = bytearray()
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + bytes(body)


def tensor(seed: int, *shape: int, dtype: str = "F32") -> tuple[str, tuple[int, ...], bytes]:
    """Return a tensor of random bytes."""
    size = DTYPE_BYTES[dtype]
    for dimension in shape:
        size *= dimension
    return dtype, shape, random.Random(seed).randbytes(size)


def small_model(seed: int, *, frozen: int = 0) -> dict[str, bytes]:
    """Return the files of a model of about 6 KiB: `layer` depends on `seed`, `embed` on `frozen` only."""
    weights = {"embed": tensor(frozen, 32, 24), "norm": tensor(seed, 8), "layer": tensor(seed + 1, 24, 24)}
    return {
        "config.json": b'{"model_type": "small"}',
        "model.safetensors": safetensors_file(weights, {"format": "pt"}),
        "tokenizer.json": random.Random(f"tokenizer {frozen}").randbytes(700),
    }


def chunk_data(signed: SignedManifest, files: Mapping[str, bytes], index: int) -> bytes:
    """Return the bytes of chunk `index`."""
    place = placements(signed.manifest)[index][0]
    data = files[signed.manifest.files[place.file].name]
    return data[place.offset : place.offset + signed.manifest.chunks[index].size]


def patch_between(base: Mapping[str, bytes], target: Mapping[str, bytes]) -> bytes:
    """Return the patch from the files of one model to those of another."""
    files = [[source(name, data) for name, data in model.items()] for model in (base, target)]
    return b"".join(encode_patch(files[0], files[1]))


def nudged(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a model one small step later: a few bytes of its weights differ."""
    weights = bytearray(files["model.safetensors"])
    for offset in range(len(weights) - 1200, len(weights), 400):
        weights[offset] = (weights[offset] + 1) % 256
    return {**files, "model.safetensors": bytes(weights)}


def put_patch(store: ChunkStore, signed: SignedManifest, number: int, patch: bytes) -> None:
    """Begin patch `number` of a version and put its chunks."""
    store.begin_patch(signed.hash, number)
    offset = 0
    for index in signed.manifest.patches[number].chunks:
        size = signed.manifest.chunks[index].size
        store.put(signed.hash, index, patch[offset : offset + size])
        offset += size


def fill(store: ChunkStore, signed: SignedManifest, files: Mapping[str, bytes]) -> Path:
    """Begin a version, put all missing chunks, finish it, and return its directory."""
    store.begin(signed)
    for index in store.missing(signed.hash):
        store.put(signed.hash, index, chunk_data(signed, files, index))
    return store.finish(signed.hash)


def write_model(directory: Path, files: Mapping[str, bytes]) -> Path:
    """Write `files` into a new directory, as a trainer would, and return it."""
    directory.mkdir(parents=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


def model_files(directory: Path) -> dict[str, bytes]:
    """Return the files of a directory that an engine would see, by name."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if not path.name.startswith(".")}
