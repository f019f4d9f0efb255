"""Weights out: a model directory becomes chunks and a signed manifest.

What always holds: the manifest names exactly the bytes of the directory at that moment, and its `previous` is the
manifest before it, so versions form a chain. Nothing here writes; the store adopts the directory afterwards.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from protocol.genesis import Authority
from protocol.identity import Keypair
from protocol.ids import ManifestHash, PolicyVersion
from protocol.layout import Source, changed_chunks, describe, file_chunks
from protocol.manifest import Manifest, SignedManifest, is_safe_file_name, sign_manifest


@dataclass(frozen=True, kw_only=True)
class Publisher:
    """Who publishes: the learner's key, the swarm, and the operator's certificate for that key."""

    learner: Keypair
    authority: Authority
    certificate: bytes

    def publish(
        self, directory: Path, version: PolicyVersion, previous: ManifestHash | None, now_ms: int
    ) -> SignedManifest:
        """Read `directory` once and return its signed manifest.

        Files whose names no peer would accept (hidden ones, say) stay out. Raises OSError, LayoutError.
        """
        with ExitStack() as opened:
            paths = [path for path in sorted(directory.iterdir()) if is_safe_file_name(path.name)]
            tables = describe([_source(path, opened.enter_context(path.open("rb"))) for path in paths])
        manifest = Manifest(
            version=version,
            previous=previous or b"",
            created_ms=now_ms,
            certificate=self.certificate,
            files=tables.files,
            chunks=tables.chunks,
            tensors=tables.tensors,
        )
        return sign_manifest(self.learner, self.authority, manifest)


def new_bytes(manifest: Manifest, before: Manifest | None) -> int:
    """Bytes of the chunks that the version before did not have: what a peer that held it must fetch without patches."""
    fresh = file_chunks(manifest) if before is None else changed_chunks(before, manifest)
    return sum(manifest.chunks[index].size for index in fresh)


def _source(path: Path, file: BinaryIO) -> Source:
    return Source(
        name=path.name, size=path.stat().st_size, read=lambda offset, size: os.pread(file.fileno(), size, offset)
    )
