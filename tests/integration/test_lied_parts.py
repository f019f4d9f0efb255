"""Audit a lease that one peer handed back and another continued, with a lie about the first part.

The tokens of the liar convict it, and no other peer is blamed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from learner.trust.audit_history import TrustLevel
from node.engine.interface import InstalledVersion
from protocol.core.ids import PolicyVersion
from protocol.work import Handback, Lease
from tests.support.learner_fixture import FakePeer, Judge, Learner, Settings, hand_in, open_learner
from tests.support.trainer_fixture import OTHER, PEER

AUDITED = Settings(audits=True, steps=6, staleness=3)


def drawn(seed: int, version: PolicyVersion) -> tuple[int, ...]:
    """Return the tokens that honest engines draw for a seed: four, with one of them begun."""
    return (1 + seed % 60, 2, 3, 0)


@dataclass(kw_only=True)
class Leaver(FakePeer):
    """A peer that begins leases and hands them back: a token of the first completion, none of the others. After `most`
    of them it delivers.
    """

    most: int = 8
    returned: int = 0

    async def hand_over(
        self, learner: Learner, lease: Lease, version: InstalledVersion, made: Sequence[tuple[int, ...]]
    ) -> None:
        if lease.start or self.returned == self.most:
            return await super().hand_over(learner, lease, version, made)
        self.returned += 1
        begun = self.records_of(lease, version, [made[0][:1]])
        await hand_in(learner, self.id, Handback(lease=lease.id, records=begun, reason="its owner needs the machine"))


@dataclass(kw_only=True)
class Liar(FakePeer):
    """A peer that continues as if the first part had been another one."""

    takes_parts: bool = True

    async def hand_over(
        self, learner: Learner, lease: Lease, version: InstalledVersion, made: Sequence[tuple[int, ...]]
    ) -> None:
        if lease.start:
            made = [(9, 9, 0) for _ in made]
        await super().hand_over(learner, lease, version, made)


def ask(learner: Learner, sql: str, *values: Any) -> list[Any]:
    with closing(sqlite3.connect(learner.root / "ledger.sqlite")) as db:
        return db.execute(sql, values).fetchall()


FAILED = "SELECT count(*) FROM audits WHERE peer = ? AND passed = 0"
TRAINED_PARTS = (
    "SELECT count(*) FROM records JOIN continuations c USING (lease) WHERE peer = ? AND c.turn > 0 AND step IS NOT NULL"
)


async def test_parts_of_honest_peers_pass_their_audits_and_are_trained_on_as_one(tmp_path: Path) -> None:
    async with open_learner(tmp_path, AUDITED, judge=Judge(draws=drawn)) as learner:
        await learner.train(Leaver(key=PEER, draw=drawn), FakePeer(key=OTHER, takes_parts=True, draw=drawn))
        assert learner.capacity.chain.head.version == AUDITED.steps
        assert ask(learner, FAILED, PEER.peer_id) == ask(learner, FAILED, OTHER.peer_id) == [(0,)]
        trained = [ask(learner, TRAINED_PARTS, one.peer_id)[0][0] for one in (PEER, OTHER)]
        assert sum(trained) > 0
        assert learner.logged("lease_handed_back")


async def test_who_lies_about_the_part_before_fails_its_own_audit_and_no_other(tmp_path: Path) -> None:
    async with open_learner(tmp_path, AUDITED, judge=Judge(draws=drawn)) as learner:
        await learner.train(Leaver(key=PEER, draw=drawn, most=2), Liar(key=OTHER, draw=drawn))
        assert learner.capacity.chain.head.version == AUDITED.steps
        assert ask(learner, FAILED, OTHER.peer_id)[0][0] > 0
        assert ask(learner, TRAINED_PARTS, OTHER.peer_id) == [(0,)], "a group with a lie was trained on"
        assert ask(learner, FAILED, PEER.peer_id) == [(0,)]
        assert learner.trust.standings.remember(PEER.peer_id).standing is not TrustLevel.BANNED
