"""A node of ours behind a router: `node_volery.py`, but that peers meet as members do, introduced by the learner.

Peers dial the source alone, over the line to the learner that nodes have (`swarm/work/client.py`), say there how they
are reached, and meet whom they are introduced to (`node/network/introductions.py`): dialled, dialled back or punched
(`swarm/libp2p/reachability`). The source does the learner's part (`introducer.py`), and is the relay. Where nobody
punches, peers do not say how they are reached, as nodes did not before there was such a word; all else is the same.

Invariants:
- READY is said once all partners are met, or MEETING_S after the source was: the report tells who was not.
- What a node fetched from whom it did not meet in a direct connection is nothing: circuits carry no chunks.
"""

from __future__ import annotations

import sys
from typing import cast

import trio

from benchmarks.network.founding import PORT, found, key_of, now_ms
from benchmarks.network.introducer import Introducer
from benchmarks.network.line import Line
from benchmarks.network.node_volery import Node, complain, follow
from node.config.node_config import NodeNetworkSection
from node.config.swarm_config import NetworkSection
from node.network.introductions import Neighbours
from node.network.transport import open_transport
from node.rollout_role.work_line_news import line_reporter
from node.runtime.events import EventLog, Fields
from node.runtime.startup import prepare_process
from protocol.accounting.claims import Price
from protocol.core.codec import encode
from protocol.core.limits import PROTOCOL_VERSION
from protocol.reach import REACH
from protocol.work import Heartbeat, Hello
from swarm.libp2p.host import Host
from swarm.store import ChunkStore
from swarm.transport.error_groups import first_cause
from swarm.work.client import WorkClient

MEETING_S = 60.0
"""From the source to all partners. A hole is punched within three seconds, or not within twenty."""

LOOK_AGAIN_S = 0.1


class Member(Node):
    """A node that is introduced. `run` keeps it among its neighbours."""

    def join(self, events: EventLog) -> None:
        """Build what a rollout node has to be a member: a line to the learner, and its neighbours."""
        source = self.task.names[0]
        self.neighbours = Neighbours(transport=self.transport, events=events)
        self.work = WorkClient(
            transport=self.transport,
            authority=self.authority,
            learner=[f"/ip4/{self.task.addresses[0]}/tcp/{PORT}/p2p/{key_of(source).peer_id}"],
            hello=self._hello,
            heartbeat=lambda: Heartbeat(ext=self._said_of_reach()),
            now_ms=now_ms,
            on_event=line_reporter(events, self.neighbours.hear, lambda _: None, lambda _: None),
            report=complain,
        )

    async def meet_partners(self) -> list[str]:
        """Wait until all are met that can be, or for MEETING_S; return whom."""
        source = key_of(self.task.names[0]).peer_id
        if not self.task.is_source:
            while source not in self.transport.connected_peers():
                await trio.sleep(LOOK_AGAIN_S)
        with trio.move_on_after(MEETING_S):
            while len(self.met()) < len(self.task.partners):
                await trio.sleep(LOOK_AGAIN_S)
        return self.met()

    def met(self) -> list[str]:
        """Which partners there is a connection to."""
        here = self.transport.connected_peers()
        return [name for name in self.task.partners if key_of(name).peer_id in here]

    def _hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL_VERSION,
            name=self.task.names[self.task.index],
            addresses=self.transport.addresses(),
            price=Price(micros_per_hour=0, currency="USD"),
            ext=self._said_of_reach(),
        )

    def _said_of_reach(self) -> dict[str, bytes]:
        return {REACH: encode(self.transport.reached())} if self.task.punches else {}


async def play(line: Line) -> None:
    """One run, from READY to REPORT."""
    task = line.assignment
    network = (
        NetworkSection(listen=[f"/ip4/{task.address}/tcp/{PORT}"])
        if task.is_source
        else NodeNetworkSection(listen=[f"/ip4/0.0.0.0/tcp/{PORT}"])
    )
    events = EventLog()
    events.listen(_log)
    with ChunkStore.open(task.directory / "store", found()[1]) as store, first_cause():
        async with (
            open_transport(key_of(task.names[task.index]).seed, network, events) as transport,
            trio.open_nursery() as nursery,
        ):
            member = Member(task, transport, store)
            if task.is_source:
                member.publish()
                Introducer(transport=transport).start()
            else:
                member.join(events)
                nursery.start_soon(member.work.run)
                nursery.start_soon(member.neighbours.run)
            member.serving.start()
            met = await member.meet_partners()
            file, up, down = await follow(line, member, nursery)
            carried = cast(Host, transport).reaching.relay.relayed_bytes
            line.report(file, up=up, down=down, met=met, circuit_bytes=carried)
            nursery.cancel_scope.cancel()


def _log(event: str, fields: Fields) -> None:
    """On standard error, which the conductor keeps: who could not be met, and why."""
    print(event, *(f"{name}={value}" for name, value in fields.items()), file=sys.stderr, flush=True)


if __name__ == "__main__":
    prepare_process()
    trio.run(play, Line())
