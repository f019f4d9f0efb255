"""Decide who plays in a drill: honest peers that stay, and places for cheats, which the attacks take in turn.

Invariants:

- At any time there are as many cheats as there are places.
- A cheat that was banned, or has made its rollouts, makes room for the next attack, which comes with a new key.
- Every peer that ever played is remembered.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count, cycle

import trio

from node.commands.drill.attacks import SYBIL_GROUPS, Attack
from node.commands.drill.behaviours import Common, hand_of
from node.commands.drill.peer import DrillPeer, Ended
from protocol.accounting.claims import MICROS, Price
from protocol.core.genesis import Authority
from protocol.core.identity import Keypair
from protocol.core.ids import ManifestHash, PeerId, PolicyVersion
from swarm.testing.memory_transport import MemoryNetwork

BATCH = 2
"""Groups that a peer requests at a time."""

PRICE = 0.10
OVERCHARGED = 100.0
"""US dollars an hour that an honest peer asks, and the factor by which the overcharging cheat asks more."""

WITH_KEYS = frozenset({Attack.SYBIL, Attack.MINTED})
"""Attacks that one cheat plays with several keys, one after the other."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """The part that one key played. `ended`: None while it plays. `act`: the same number for all keys of one cheat."""

    peer: PeerId
    act: int
    attack: Attack | None
    player: DrillPeer
    ended: Ended | None = None


@dataclass(kw_only=True)
class Roster:
    """All peers of a drill: `honest` peers, and `cheats` at a time that play `attacks` in their order.

    Without `returns`, a cheat that was found is not replaced.
    """

    network: MemoryNetwork
    common: Common
    authority: Authority
    learner: list[str]
    token: str
    group: int
    honest: int
    cheats: int
    attacks: Sequence[Attack]
    seed: int
    returns: bool = True
    played: list[Played] = field(default_factory=list)
    _acts: count[int] = field(default_factory=count)

    async def play(self) -> None:
        """Play until the run is over, or until cancelled."""
        turns = cycle(self.attacks)
        async with trio.open_nursery() as nursery:
            for number in range(self.honest):
                nursery.start_soon(partial(self._play_one, f"honest-{number + 1}", None, act=next(self._acts)))
            for number in range(self.cheats if self.attacks else 0):
                nursery.start_soon(self._play_many, number, turns)

    async def _play_many(self, place: int, turns: cycle[Attack]) -> None:
        while True:
            attack = next(turns)
            act, before, made, part = next(self._acts), None, 0, 0
            while made < attack.rollouts:
                part += 1
                done = await self._play_one(
                    f"{attack.value}-{place + 1}" + (f"-{part}" if part > 1 else ""),
                    attack,
                    act=act,
                    groups=SYBIL_GROUPS if attack is Attack.SYBIL or (attack is Attack.MINTED and part == 1) else None,
                    left=attack.rollouts - made,
                    accomplice=before if attack is Attack.MINTED else None,
                )
                if done.ended is Ended.FINISHED:
                    return
                before = done.peer
                made += done.player.hand.rollouts
                if attack not in WITH_KEYS:
                    break
            if not self.returns:
                return

    async def _play_one(
        self,
        name: str,
        attack: Attack | None,
        *,
        act: int,
        groups: int | None = None,
        left: int | None = None,
        accomplice: PeerId | None = None,
    ) -> Played:
        keypair = Keypair.generate()
        rng = random.Random(f"{self.seed}/{name}")
        async with self.network.node(keypair.peer_id, listens=False, peer_id=keypair.peer_id) as transport:
            price = PRICE * (OVERCHARGED if attack is Attack.OVERCHARGING else 1.0)
            player = DrillPeer(
                name=name,
                hand=hand_of(attack, self.common, keypair, rng),
                transport=transport,
                authority=self.authority,
                learner=self.learner,
                token=self.token,
                price=Price(micros_per_hour=round(price * MICROS), currency="USD"),
                batch=BATCH * self.group,
                rng=rng,
                chunks=self._chunks,
                attack=attack,
                groups=groups,
                rollouts=left,
                accomplice=accomplice,
            )
            place = len(self.played)
            self.played.append(Played(peer=keypair.peer_id, act=act, attack=attack, player=player))
            ended = await player.play()
        self.played[place] = done = Played(peer=keypair.peer_id, act=act, attack=attack, player=player, ended=ended)
        return done

    def _chunks(self, version: PolicyVersion) -> tuple[ManifestHash, int]:
        """Return the hash of the version's manifest, and the number of its chunks."""
        signed = self.common.foundry.manifest_of(version)
        return signed.hash, len(signed.manifest.chunks)
