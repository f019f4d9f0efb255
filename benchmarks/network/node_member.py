"""Run a node of ours behind a router: as `node_volery.py`, but peers connect as members do, introduced by the learner.

Peers dial only the source, over the work connection that nodes have to the learner (`swarm/work/client.py`). There they
say how they can be reached, and get introductions (`node/network/introductions.py`), after which they dial, are dialled
back, or punch holes (`swarm/libp2p/reachability`). The source does the learner's part (`introducer.py`), and is the
relay. Without hole punching, peers do not say how they can be reached, as nodes did before that field existed;
everything else is the same.

Invariants:

- READY is said once all partners are connected, or MEETING_S after the source is; the report says which are missing.
- A node fetches nothing from a peer without a direct connection: circuits carry no chunks.
"""

from __future__ import annotations

import sys
from typing import cast

import trio

from benchmarks.network.founding import PORT, found, key_of, now_ms
from benchmarks.network.introducer import Introducer
from benchmarks.network.node_volery import Node, complain, follow
from benchmarks.network.program_end import ProgramEnd
from node.config.node_config import NodeNetworkSection
from node.config.swarm_config import NetworkSection
from node.network.introductions import Neighbours
from node.network.transport import open_transport
from node.rollout_role.session_events import session_event_handler
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
"""Timeout from the source to all partners. A hole is punched within three seconds, or not within twenty."""

LOOK_AGAIN_S = 0.1


class Member(Node):
    """A node that is introduced; `run` keeps its neighbours connected."""

    def join(self, events: EventLog) -> None:
        """Build what a rollout node needs to be a member: a work connection to the learner, and its neighbours."""
        source = self.task.names[0]
        self.neighbours = Neighbours(transport=self.transport, events=events)
        self.work = WorkClient(
            transport=self.transport,
            authority=self.authority,
            learner=[f"/ip4/{self.task.addresses[0]}/tcp/{PORT}/p2p/{key_of(source).peer_id}"],
            hello=self._hello,
            heartbeat=lambda: Heartbeat(ext=self._said_of_reach()),
            now_ms=now_ms,
            on_event=session_event_handler(events, self.neighbours.hear, lambda _: None, lambda _: None),
            report=complain,
        )

    async def meet_partners(self) -> list[str]:
        """Wait until all possible partners are connected, or for MEETING_S; return the connected ones."""
        source = key_of(self.task.names[0]).peer_id
        if not self.task.is_source:
            while source not in self.transport.connected_peers():
                await trio.sleep(LOOK_AGAIN_S)
        with trio.move_on_after(MEETING_S):
            while len(self.met()) < len(self.task.partners):
                await trio.sleep(LOOK_AGAIN_S)
        return self.met()

    def met(self) -> list[str]:
        """Return the partners with a connection."""
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


async def play(program_end: ProgramEnd) -> None:
    """Perform one run, from READY to REPORT."""
    task = program_end.assignment
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
            file, up, down = await follow(program_end, member, nursery)
            carried = cast(Host, transport).reaching.relay.relayed_bytes
            program_end.report(file, up=up, down=down, met=met, circuit_bytes=carried)
            nursery.cancel_scope.cancel()


def _log(event: str, fields: Fields) -> None:
    """Print events on standard error, which the conductor stores: which peers could not connect, and why."""
    print(event, *(f"{name}={value}" for name, value in fields.items()), file=sys.stderr, flush=True)


if __name__ == "__main__":
    prepare_process()
    trio.run(play, ProgramEnd())
