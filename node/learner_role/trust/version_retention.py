"""Which versions stay in the store for what is to be looked at: audits, and what peers may have chosen.

What always holds: of versions that no rollout may be made with any more, MAX_OUTDATED at most stay for that when the
store is cleaned; where the store has no room for a new version, none does. What is given up therefore is nobody's
fault: first the audits that nobody waits for, then what peers may have chosen, then what groups wait for; of each
first what has been kept longest.
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
"""Versions beyond the staleness window that are kept to be looked at: an engine that is further behind than that does
not catch up, and each takes as much of the disk as the model."""


class RetentionReason(IntEnum):
    """What a version is kept for, in the order in which that is given up."""

    AUDIT = 0
    CHOICE = 1
    AWAITED = 2


@dataclass(kw_only=True)
class VersionRetention:
    """See the module's paragraph. `version_lost`: a version goes, and who needs it releases it at once."""

    store: ChunkStore
    version_lost: Signal[ManifestHash] = field(default_factory=Signal)
    _uses: dict[ManifestHash, Counter[RetentionReason]] = field(default_factory=dict)

    def __contains__(self, manifest: ManifestHash) -> bool:
        return manifest in self._uses

    def keep(self, manifests: Collection[ManifestHash], use: RetentionReason) -> bool:
        """Keep all of these until they are released as often, or none; whether the store still has them."""
        pinned: list[ManifestHash] = []
        for manifest in manifests:
            try:
                self.store.pin(manifest)
            except StoreError:  # too old to be looked at
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
        """Give up what is beyond MAX_OUTDATED versions, not counting those that are `current`."""
        outdated = [manifest for manifest in self._in_order() if manifest not in current]
        for manifest in outdated[: max(0, len(outdated) - MAX_OUTDATED)]:
            self.version_lost.emit(manifest)

    def yield_one(self) -> bool:
        """There is no room: give up what is given up first, of any version; whether there was anything."""
        for manifest in self._in_order():
            self.version_lost.emit(manifest)
            if manifest not in self._uses:
                return True
        return False

    def _in_order(self) -> list[ManifestHash]:
        """As they are given up; of equals what has been kept longest comes first."""
        return sorted(self._uses, key=lambda manifest: max(self._uses[manifest]))
