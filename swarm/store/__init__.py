"""The content-addressed directory in which a node keeps policy versions.

    <root>/lock                      held while a process uses the store; holds its pid
    <root>/genesis, <root>/newest    the swarm's genesis, and the newest announcement believed
    <root>/manifests/<hash>          signed manifests, one for every version below
    <root>/versions/<hash>/          a complete version: a directory that an engine loads
    <root>/versions/<hash>.part/     a version being fetched: files at full size, and `.have`, a bitmap of the chunks
                                     in place

What always holds: bytes are checked against their content id before they are written and again before they are
served; a directory without `.part` was complete, and on the disk, when it got that name; whatever moment the process
is killed at, the next `ChunkStore.open` finds complete versions and parts that can be resumed, and nothing else.
"""

from swarm.store.errors import (
    StoreError,
    StoreForeign,
    StoreFull,
    StoreLocked,
    StoreUnwritable,
    VersionIncomplete,
    VersionUnknown,
)
from swarm.store.store import ChunkStore, HeldVersion

__all__ = [
    "ChunkStore",
    "HeldVersion",
    "StoreError",
    "StoreForeign",
    "StoreFull",
    "StoreLocked",
    "StoreUnwritable",
    "VersionIncomplete",
    "VersionUnknown",
]
