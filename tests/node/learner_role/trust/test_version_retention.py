"""Choose the versions that stay for audits, and the order in which they are given up."""

from __future__ import annotations

from pathlib import Path

import pytest

from node.learner_role.trust.version_retention import MAX_OUTDATED, RetentionReason, VersionRetention
from protocol.core.ids import ManifestHash
from tests.support.learner_fixture import Settings, open_learner

pytestmark = pytest.mark.usefixtures("mock_clock")


class Owner:
    """Keeps each version for one thing, and releases it when it is told to."""

    def __init__(self, kept: VersionRetention) -> None:
        self.kept, self.uses, self.told = kept, dict[ManifestHash, list[RetentionReason]](), list[ManifestHash]()
        kept.version_lost.subscribe(self.give_up)

    def keep(self, manifest: ManifestHash, use: RetentionReason) -> None:
        assert self.kept.keep([manifest], use)
        self.uses.setdefault(manifest, []).append(use)

    def give_up(self, manifest: ManifestHash) -> None:
        self.told.append(manifest)
        for use in self.uses.pop(manifest, []):
            self.kept.release([manifest], use)


async def keep_all() -> None:
    """Remove nothing from the store."""


async def test_who_is_waited_for_goes_last_and_of_equals_the_oldest_first(tmp_path: Path) -> None:
    async with open_learner(tmp_path, Settings()) as learner:
        names = []
        learner.training.publishing.clean = keep_all  # type: ignore[method-assign]
        await learner.training.begin()
        for _ in range(MAX_OUTDATED + 5):
            learner.capacity.chain = learner.capacity.chain.advance()
            names.append((await learner.training.publishing.publish()).hash)
        kept = VersionRetention(store=learner.store)
        owner = Owner(kept)
        awaited, choice, audit, both, *others, current = names
        for manifest, use in (
            (awaited, RetentionReason.AWAITED),
            (choice, RetentionReason.SELECTION),
            (audit, RetentionReason.AUDIT),
            (both, RetentionReason.AUDIT),
            (both, RetentionReason.SELECTION),
            *((manifest, RetentionReason.AUDIT) for manifest in others),
            (current, RetentionReason.AUDIT),
        ):
            owner.keep(manifest, use)
        assert not kept.keep([audit, ManifestHash(bytes(32))], RetentionReason.AUDIT), "all of them, or none"
        kept.trim({current})
        assert owner.told == [audit, *others[:3]]
        assert current in kept
        assert learner.store.evict({current})
        assert {one.hash for one in learner.store.versions()} == {awaited, choice, both, *others[3:], current}
        while kept.yield_one():
            pass
        assert owner.told[4:] == [*others[3:], current, choice, both, awaited]
        learner.store.evict(())
        assert [one.hash for one in learner.store.versions()] == [current], (
            "the publisher itself must pin the newest version"
        )
