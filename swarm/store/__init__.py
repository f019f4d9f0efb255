"""The content-addressed directory in which a node keeps policy versions.

    <root>/lock                      held while a process uses the store; holds its pid
    <root>/genesis, <root>/newest    the swarm's genesis, and the newest announcement believed
    <root>/manifests/<hash>          signed manifests, one for every version below
    <root>/versions/<hash>/          a complete version: a directory that an engine loads
    <root>/versions/<hash>.part/     a version being fetched: files at full size, and `.have`, a bitmap of the chunks
                                     in place

Invariants: bytes are checked against their content id before they are written and again before they are served. A
directory without `.part` was complete, and on the disk, when it got that name. Whatever moment the process is killed
at, the next `ChunkStore.open` finds complete versions and parts that can be resumed, and nothing else.

- `chunk_store`: all versions that a node holds, and what may be done to them from any thread
- `durable_io`: the few things done to a disk that must survive a kill, and in which order
- `errors`: what can go wrong with a store on this machine, and the next step
- `eviction`: which versions must go so that a new one fits
- `patching`: from a base and a patch to the chunks of a version
- `recovery`: what `ChunkStore.open` makes of a directory that a process left behind
- `version_directory`: one version on disk: partial, then complete, and from either gone
"""

from swarm.store.chunk_store import ChunkStore, HeldVersion
from swarm.store.errors import (
    StoreError,
    StoreForeign,
    StoreFull,
    StoreLocked,
    StoreUnwritable,
    VersionIncomplete,
    VersionUnknown,
)

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
