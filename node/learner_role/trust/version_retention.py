"""Keep versions in the store for audits and for checks for selective delivery.

Audits and checks whose version is given up are dropped, which is no peer's fault. First go audits that block no
training, then checks, then audits that groups wait for. Among equals, the version that was kept longest goes first.

Invariants:

- When the store is cleaned, at most MAX_OUTDATED versions beyond the staleness window stay.
- If the store has no room for a new version, all of them may be given up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import IntEnum

from node.runtime.typed_signal import Signal
from protocol.core.ids import ManifestHash
from swarm.store import ChunkStore, StoreError

MAX_OUTDATED = 8
"""Most versions beyond the staleness window that are kept. An engine that is further behind never catches up, and each
version takes as much disk space as the model."""


class RetentionReason(IntEnum):
    """Why a version is kept, in the order in which versions are given up."""

    AUDIT = 0
    SELECTION = 1
    AWAITED = 2


@dataclass(kw_only=True)
class VersionRetention:
    """Pins versions in the store. When `version_lost` is emitted, services that need the version release it at once."""

    store: ChunkStore
    version_lost: Signal[ManifestHash] = field(default_factory=Signal)
    _uses: dict[ManifestHash, Counter[RetentionReason]] = field(default_factory=dict)

    def __contains__(self, manifest: ManifestHash) -> bool:
        return manifest in self._uses

    def keep(self, manifests: Collection[ManifestHash], use: RetentionReason) -> bool:
        """Keep all of these versions until they are released as often, or none. Return whether the store has them."""
        pinned: list[ManifestHash] = []
        for manifest in manifests:
            try:
                self.store.pin(manifest)
            except StoreError:  # the store has evicted it
                for one in pinned:
                    self.store.unpin(one)
                return False
            pinned.append(manifest)
        for manifest in pinned:
            self._uses.setdefault(manifest, Counter())[use] += 1
        return True

    def release(self, manifests: Collection[ManifestHash], use: RetentionReason) -> None:
        """Undo one `keep`."""
        for manifest in manifests:
            self.store.unpin(manifest)
            uses = self._uses[manifest]
            uses[use] -= 1
            if not uses[use]:
                del uses[use]
            if not uses:
                del self._uses[manifest]

    def trim(self, current: Collection[ManifestHash]) -> None:
        """Give up versions beyond MAX_OUTDATED, not counting those that are `current`."""
        outdated = [manifest for manifest in self._in_order() if manifest not in current]
        for manifest in outdated[: max(0, len(outdated) - MAX_OUTDATED)]:
            self.version_lost.emit(manifest)

    def yield_one(self) -> bool:
        """Give up the first version in order, because there is no room. Return whether there was one."""
        for manifest in self._in_order():
            self.version_lost.emit(manifest)
            if manifest not in self._uses:
                return True
        return False

    def _in_order(self) -> list[ManifestHash]:
        """Return the versions in the order in which they are given up. Among equals, the oldest comes first."""
        return sorted(self._uses, key=lambda manifest: max(self._uses[manifest]))
