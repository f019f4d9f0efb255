"""Run idle members: `python -m benchmarks.live.members INVITE FIRST COUNT`.

Each of them is a host of libp2p as nodes have it (TLS, yamux, identify, reachability, broadcasts), with its own key and
address. Over a work connection it greets the learner, and sends heartbeats at the period that the learner sets. It has
a link that would tell it which chunks there are. Members have no engine: they say that they are resting, ask for no
leases, fetch no versions, and dial none of the peers that they are introduced to.

Keys and addresses follow from the number of a member, so the learner knows a member that is started again. The program
ends with its standard input.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sys
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from node.network.budget_reports import FaultLog
from node.network.swarm_peer import SwarmPeer
from node.runtime.events import EventLog
from node.runtime.shutdown import STOP_ON_EOF
from node.runtime.startup import prepare_process
from protocol.accounting.claims import Price
from protocol.core.codec import encode
from protocol.core.invite import Invite, read_invite
from protocol.core.limits import PROTOCOL_VERSION
from protocol.reach import REACH
from protocol.work import INSTANCE, INSTANCE_BYTES, LEASE_RECALLS, PARTS, PROOFS, RECEIPT_REVISIONS, Heartbeat, Hello
from swarm.libp2p import open_libp2p
from swarm.store import ChunkStore
from swarm.transfer.serving import Knowledge
from swarm.transport.error_groups import first_cause
from swarm.transport.interface import Transport, ignore_report
from swarm.work.client import Connected, NotWelcome, RunFinished, SessionEvent, WorkClient

STARTED_AT_ONCE = 8
"""Members of one process that join at once at the beginning. After a restart of the learner all come at once."""

PER_NETWORK = 250


def address_of(number: int) -> str:
    """Return an address of the network that is only this machine, 127.0.0.0/8."""
    return f"127.77.{number // PER_NETWORK}.{1 + number % PER_NETWORK}"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Member:
    """One idle member."""

    def __init__(self, number: int, invite: Invite, transport: Transport, store: ChunkStore) -> None:
        self.number, self.invite, self.transport = number, invite, transport
        self.instance = secrets.token_bytes(INSTANCE_BYTES)
        self.told, self.joined = b"", trio.Event()
        knowledge = Knowledge(genesis=b"", newest=lambda: b"", peers=list)
        self.swarm = SwarmPeer.build(transport, store, knowledge, FaultLog(events=EventLog()))
        self.work_client = WorkClient(
            transport=transport,
            authority=invite.authority,
            learner=invite.addresses,
            hello=self._hello,
            heartbeat=lambda: Heartbeat(hours_left_s=0, ext=self._reach(anew=False)),
            now_ms=now_ms,
            on_event=self._hear,
            report=ignore_report,
        )

    def _hear(self, event: SessionEvent) -> None:
        if isinstance(event, Connected):
            self.joined.set()

    def _hello(self) -> Hello:
        return Hello(
            protocol=PROTOCOL_VERSION,
            name=f"member-{self.number}",
            token=self.invite.token,
            addresses=self.transport.addresses(),
            price=Price(micros_per_hour=0, currency="USD"),
            engine="fake",
            ext={
                INSTANCE: self.instance,
                **dict.fromkeys((LEASE_RECALLS, PARTS, PROOFS, RECEIPT_REVISIONS), b""),
                **self._reach(anew=True),
            },
        )

    def _reach(self, *, anew: bool) -> dict[str, bytes]:
        """Return how it can be reached if the learner does not know it, as a node reports it."""
        reach = encode(self.transport.reached())
        is_known, self.told = reach == self.told, reach
        return {} if is_known and not anew else {REACH: reach}


async def keep_member(number: int, invite: Invite, place: Path, starting: trio.CapacityLimiter) -> None:
    """Stay connected until cancelled, or until the run is over."""
    seed = hashlib.sha256(b"member %d" % number).digest()
    await starting.acquire_on_behalf_of(number)
    with suppress(NotWelcome, RunFinished), first_cause():
        async with open_libp2p(seed, [f"/ip4/{address_of(number)}/tcp/0"]) as transport:
            with ChunkStore.open(place / str(number), invite.authority) as store:
                async with trio.open_nursery() as nursery:
                    member = Member(number, invite, transport, store)
                    member.swarm.start(nursery)
                    nursery.start_soon(member.work_client.run)
                    await member.joined.wait()
                    starting.release_on_behalf_of(number)


async def keep_members(invite: Invite, first: int, count: int) -> None:
    """Keep the members connected until standard input ends."""
    starting = trio.CapacityLimiter(STARTED_AT_ONCE)
    with TemporaryDirectory(prefix="volery-members-") as directory:
        await _keep_members(invite, range(first, first + count), Path(directory), starting)


async def _keep_members(invite: Invite, numbers: range, place: Path, starting: trio.CapacityLimiter) -> None:
    async with trio.open_nursery() as nursery:
        for number in numbers:
            nursery.start_soon(keep_member, number, invite, place, starting)
        if STOP_ON_EOF in os.environ:
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    prepare_process()
    trio.run(keep_members, read_invite(sys.argv[1], now_ms=now_ms()), int(sys.argv[2]), int(sys.argv[3]))
