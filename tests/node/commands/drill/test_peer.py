"""A player of a drill: which of its work counts as its attack's."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, cast

from node.commands.drill.attacks import Attack
from node.commands.drill.behaviours import Behaviour, Common
from node.commands.drill.peer import DrillPeer
from node.commands.drill.shared_engine import SharedEngine
from node.engine.fake import FakeConfig, FakeEngine
from protocol.accounting.claims import Price
from protocol.core.ids import ManifestHash, PolicyVersion
from protocol.work import Lease
from swarm.testing.memory_transport import MemoryNetwork
from swarm.work.client import Granted
from tests.support.trainer_fixture import PEER, SWARM, granted

V1 = PolicyVersion(1, 1)
SIZE = 4


@dataclass(kw_only=True)
class Turning(Behaviour):
    """Gives the first lease back, answers the second honestly and cheats from the third on."""

    answered: int = 0

    async def answer(self, lease: Lease, version: PolicyVersion) -> list[bytes] | None:
        self.count(lease)
        self.answered += 1
        self.has_cheated = self.answered > 2
        return None if self.answered == 1 else [b""] * SIZE


@dataclass(kw_only=True)
class Line:
    """Takes what a player says."""

    delivered: int = 0
    returned: int = 0
    said: list[Any] = field(default_factory=list)

    def tell_started(self, message: object) -> None:
        self.said.append(message)

    def return_leases(self, leases: list[Any], why: str) -> None:
        self.returned += len(leases)

    async def deliver(self, lease: object, records: list[bytes]) -> None:
        self.delivered += len(records)


async def test_what_was_delivered_before_it_cheated_is_honest_and_what_went_back_is_nothing(tmp_path: Any) -> None:
    common = Common(
        foundry=SharedEngine(engine=cast(Any, FakeEngine(FakeConfig())), scratch=tmp_path),
        swarm=SWARM.authority.swarm,
        reward=lambda lease, tokens: 0.0,
        answer=lambda lease: (),
        poison=(),
        vocabulary=64,
    )
    hand = Turning(common=common, keypair=PEER, rng=random.Random(0))
    async with MemoryNetwork().node(PEER.peer_id, listens=False, peer_id=PEER.peer_id) as transport:
        player = DrillPeer(
            name="turning",
            hand=hand,
            transport=transport,
            authority=SWARM.authority,
            learner=[],
            token="",
            price=Price(micros_per_hour=0, currency="USD"),
            batch=SIZE,
            rng=random.Random(0),
            chunks=lambda version: (ManifestHash(bytes(32)), 0),
            attack=Attack.SLEEPER,
        )
        line = Line()
        player.work_client = cast(Any, line)
        for number in range(4):
            lease = granted(number, size=SIZE, minimum=V1).lease
            await player._answer(Granted(lease=lease, clock_offset_ms=0), V1)
    assert (line.returned, line.delivered) == (1, 3 * SIZE)
    assert (hand.rollouts, hand.honest) == (4 * SIZE, SIZE)
