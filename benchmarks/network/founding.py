"""Derive the swarm that the programs of a run belong to: its keys, its authority, its learner's signature.

Invariant: everything here is a function of names, the same in every process, so processes need to exchange nothing. The
learner is the node with the key of the source's name.
"""

from __future__ import annotations

import time

from learner.artifacts.version_builder import VersionBuilder
from protocol.core.digest import digest_of
from protocol.core.genesis import Authority, certify_learner, found_swarm
from protocol.core.identity import Keypair
from protocol.versions.announcement import Announcement, announce
from protocol.versions.manifest import SignedManifest

PORT = 4001
FOUNDED_MS = 1_000
FOREVER_MS = 1 << 45


def key_of(name: str) -> Keypair:
    """Return the key of a node."""
    return Keypair(digest_of(f"benchmark: {name}".encode()))


def found() -> tuple[bytes, Authority]:
    """Return the swarm's genesis and authority."""
    return found_swarm(key_of("operator"), name="benchmark", created_ms=FOUNDED_MS, nonce=bytes(16))


def publisher_of(name: str) -> VersionBuilder:
    """Return the learner's part of the node called `name`, certified by the operator."""
    authority = found()[1]
    learner = key_of(name)
    certificate = certify_learner(
        key_of("operator"), authority, learner=learner.public, not_before_ms=0, not_after_ms=FOREVER_MS
    )
    return VersionBuilder(learner=learner, authority=authority, certificate=certificate)


def announcement_of(signed: SignedManifest, publisher: VersionBuilder) -> bytes:
    """Return the learner's announcement of a version."""
    announcement = Announcement(
        version=signed.version,
        manifest=signed.hash,
        manifest_bytes=len(signed.raw),
        total_bytes=signed.manifest.total_bytes,
        certificate=publisher.certificate,
    )
    return announce(publisher.learner, publisher.authority, announcement)


def now_ms() -> int:
    return time.time_ns() // 1_000_000
