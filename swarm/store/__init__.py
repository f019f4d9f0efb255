"""Keep policy versions in a content-addressed directory.

    <root>/lock                      locked while a process uses the store; contains its pid
    <root>/genesis, <root>/newest    the swarm's genesis, and the newest verified announcement
    <root>/manifests/<hash>          signed manifests, one for every version below
    <root>/versions/<hash>/          a complete version: a directory that an engine loads
    <root>/versions/<hash>.part/     a version that is being fetched: files at full size, and `.have`, a bitmap of the
                                     chunks in place

Invariants:

- Bytes are checked against their content id before they are written, and again before they are served.
- A directory without `.part` was complete, and on the disk, when it got that name.
- The process may be killed at any moment: the next `ChunkStore.open` finds complete versions and parts that can be
  resumed, and nothing else.

Files:

- `chunk_store`: all versions that a node holds; its methods may be called from any thread
- `durable_io`: disk operations whose result must survive a kill
- `errors`: errors of a store on this machine, with the next step
- `eviction`: which versions must be evicted so that a new one fits
- `patching`: makes the chunks of a version from a base and a patch
- `recovery`: recovers a store that a process left behind
- `version_directory`: one version on disk: partial, complete or gone
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
