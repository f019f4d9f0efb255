"""Run members and a learner in processes of their own, on loopback or behind the laboratory's routers.

The stage introduces them as a learner does, by the same rules and from what the members themselves report; everything
else that a learner does is left out. A test waits for a report, never for a time. Every process that was started is
gone when the stage is closed.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import trio

from benchmarks.network.emulation import Node as Host
from benchmarks.network.founding import key_of
from benchmarks.network.home import Home
from benchmarks.network.homes import Laboratory, open_homes
from node.learner_role.peers.introductions import addresses_for, share_network
from protocol.core.ids import PeerId
from protocol.reach import Reach, ReachKind
from swarm.transport.error_groups import first_cause
from tests.faults.member import Assignment
from tests.faults.stage import DEADLINE_S, Company, Event, Player

LEARNER = "learner"
FIRST_PORT = 4001
ASK_AGAIN_S = 0.25
"""Seconds between two questions for a state that a member cannot report by itself."""

Condition = Callable[[Event], Any]


@dataclass(kw_only=True, eq=False)
class Village(Company):
    """The members and their learner. Get one from `open_village`."""

    lab: Laboratory | None
    names: Sequence[str]

    async def start(self, name: str, *, port: int = 0) -> Player:
        """Start a member, or start it again, and wait until it listens. It takes everybody for a member."""
        task = Assignment(name=name, names=list(self.names), listen=self._listen(name, port))
        command = [sys.executable, "-m", "tests.faults.member", msgspec.json.encode(task).decode()]
        if self.lab is not None:
            command = self.lab.inside(name, command)
        player = await self.open_player(name, command, kind="member", store=self.root)
        await player.hear("ready")
        return player

    async def settle(self, *names: str) -> list[Player]:
        """Start the learner and these members, which join it. Wait until each can be reached through it, and return
        them, the learner first.
        """
        learner = await self.start(LEARNER)
        await learner.say("trust", names=list(names))
        members = [await self.start(name) for name in names]
        for member in members:
            await self.join(member)
        return [learner, *members]

    async def join(self, member: Player) -> None:
        """Have a member keep a connection to the learner, and wait until it can be reached through it."""
        addresses = self._dialable(LEARNER, self.players[LEARNER].said("ready")[-1]["addresses"])
        await member.say("trust", names=[name for name in self.names if name != member.name])
        await member.say("join", addresses=addresses)
        await self.see(member, "a relay", lambda status: status["reach"]["relays"])

    async def introduce(self, *members: Player) -> dict[str, dict[str, list[str]]]:
        """Tell each of the others, as the learner does; return for each the peers and addresses that it was told."""
        statuses = {one.name: await one.status() for one in members}
        learner = await self.players[LEARNER].status()
        told = {
            one.name: {
                other.name: self._told(statuses[one.name], other.name, statuses[other.name], one.name, learner)
                for other in members
                if other is not one
            }
            for one in members
        }
        for one in members:
            peers = {key_of(name).peer_id: addresses for name, addresses in told[one.name].items()}
            await one.say("introduce", peers=peers)
        return told

    async def meet(self, *members: Player) -> list[Event]:
        """Wait until all have a direct connection to each other; return what they then say."""
        return [await self.see(one, "all others", lambda s, o=one: self._has_met(s, o, members)) for one in members]

    async def see(self, player: Player, what: str, condition: Condition) -> Event:
        """Ask a member for its status until that satisfies the condition, and return it."""
        status: Event = {}
        with trio.move_on_after(DEADLINE_S):
            while not condition(status := await player.status()):
                await trio.sleep(ASK_AGAIN_S)
            return status
        raise AssertionError(f"{player.name}: no {what} within {DEADLINE_S:.0f} s, but {status}\n{self.story()}")

    def story(self) -> str:
        """Return the ends of every program's output, for people, without the status reports among the events."""
        for player in self.started:
            player.events = [one for one in player.events if one["event"] != "status"]
        return "\n".join(player.story() for player in self.started)

    def _has_met(self, status: Event, one: Player, members: Sequence[Player]) -> bool:
        met = {name for name, those in status["met"].items() if not those[0]["relay"]}
        return {other.name for other in members if other is not one} <= met

    def _told(self, asker: Event, name: str, status: Event, asker_name: str, learner: Event) -> list[str]:
        origins: Mapping[str, str] = learner["origins"]
        peer = key_of(name).peer_id
        return list(
            addresses_for(
                _reach(asker),
                peer,
                _reach(status),
                status["addresses"],
                {key_of(LEARNER).peer_id: self._dialable(LEARNER, learner["addresses"])},
                shares_network=share_network(origins.get(key_of(asker_name).peer_id), origins.get(peer)),
            ).addresses
        )

    def _dialable(self, name: str, addresses: Sequence[str]) -> list[str]:
        """Return the addresses in the internet, for a public host."""
        if self.lab is None:
            return list(addresses)
        own = {self.lab.address(name), self.lab.address6(name)}
        return [one for one in addresses if one.split("/")[2] in own]

    def _listen(self, name: str, port: int) -> list[str]:
        if self.lab is None:
            return [f"/ip4/127.0.0.1/tcp/{port}"]
        port = port or FIRST_PORT + list(self.names).index(name)
        return [f"/ip4/0.0.0.0/tcp/{port}", f"/ip6/::/tcp/{port}"]


def _reach(status: Event) -> Reach:
    told = status["reach"]
    return Reach(
        kind=ReachKind(told["kind"]), addresses=told["addresses"], relays=[PeerId(relay) for relay in told["relays"]]
    )


@asynccontextmanager
async def open_village(
    root: Path, names: Sequence[str], homes: Sequence[Home] = (), hosts: Sequence[Host] = ()
) -> AsyncIterator[Village]:
    """Open a village on loopback; with `hosts`, and `homes`, in a laboratory of these. That needs root."""
    async with AsyncExitStack() as stack:
        lab = stack.enter_context(open_homes(homes, hosts)) if hosts else None
        with first_cause():
            async with trio.open_nursery() as nursery, AsyncExitStack() as players:
                yield Village(root=root, lab=lab, names=(LEARNER, *names), nursery=nursery, stack=players)
                await players.aclose()
                nursery.cancel_scope.cancel()
