"""Run a part of a swarm that a doctor examines: `python -m tests.support.doctor_swarm ROLE ADDRESS [ADDRESS ...]`.

    learner   listens at the first address, tells the other ones, which are members', and serves a version of BYTES
              random bytes; writes its invite as a line
    member    listens there; writes its address as a line
    seeker    a member whose learner, which is to be at the first address, was stopped: it looks for it again and again
    operator  asks members that come back whether they reach the other addresses, which it announces while it listens at
              the first one; writes what an operator is told, and ends

All but the last live until their standard input ends. A swarm of the same kind in this process is `open_learner`.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from node.config.swarm_config import NetworkSection
from node.doctor.announced import ask_members, describe_addresses
from node.runtime.events import Clock
from protocol.core.ids import PeerId
from protocol.core.invite import Invite, write_invite
from protocol.versions.exchange import NotTold, PeerAddresses, TellTerms
from protocol.versions.manifest import SignedManifest
from protocol.work import WORK
from swarm.libp2p import open_libp2p
from swarm.store import ChunkStore
from swarm.transfer.serving import Knowledge, Serving
from swarm.transport.interface import DialFailed, Stream, Transport
from tests.support.store_fixture import chunk_data, small_model, small_swarm
from tests.support.swarm_fixture import announce_manifest

SWARM = small_swarm()
AGAIN_S = 1.0
BYTES = 8 << 20
CHUNK_BYTES = 128 << 10


@dataclass(kw_only=True)
class Learner:
    """A learner as newcomers see it. `joined`: the work streams that peers opened."""

    transport: Transport
    serving: Serving
    joined: list[Stream] = field(default_factory=list)

    @property
    def invite(self) -> Invite:
        return Invite(
            operator=SWARM.operator.public,
            swarm=SWARM.authority.swarm,
            addresses=self.transport.addresses(),
            name="small",
        )


def version(size_bytes: int = BYTES) -> tuple[SignedManifest, dict[str, bytes]]:
    """Return a signed version of this size, and its files."""
    files = {**small_model(1), "more.txt": random.Random(1).randbytes(size_bytes)}
    return SWARM.publish(files, chunk_bytes=CHUNK_BYTES), files


@asynccontextmanager
async def open_learner(
    root: Path,
    listen: Sequence[str],
    members: Sequence[PeerAddresses] = (),
    *,
    size_bytes: int = BYTES,
    ahead_ms: int = 0,
) -> AsyncIterator[Learner]:
    """Yield a learner whose clock is so many milliseconds ahead of this machine's; its store lies below `root`."""
    signed, files = version(size_bytes)

    def terms(token: str) -> TellTerms | NotTold:
        if token:
            return NotTold(reason="The join token is missing or wrong. Ask the operator for a new invite.")
        now_ms = Clock.now_ms() + ahead_ms
        return TellTerms(certificate=SWARM.certificate, model="Small", steps=10, now_ms=now_ms)

    with ChunkStore.open(root / "store", SWARM.authority) as store:
        store.begin(signed)
        for index in range(len(signed.manifest.chunks)):
            store.put(signed.hash, index, chunk_data(signed, files, index))
        async with open_libp2p(SWARM.learner.seed, listen) as transport:
            newest = announce_manifest(SWARM, signed)
            knowledge = Knowledge(
                genesis=SWARM.genesis, newest=lambda: newest, peers=lambda: list(members), terms=terms
            )
            learner = Learner(
                transport=transport, serving=Serving(transport=transport, store=store, knowledge=knowledge)
            )

            async def work(stream: Stream) -> None:
                learner.joined.append(stream)
                await trio.sleep_forever()

            transport.handle(WORK, work)
            learner.serving.start()
            yield learner


async def seek(address: str) -> None:
    """Look for a learner until cancelled, as a node does."""
    async with open_libp2p(os.urandom(32), []) as transport:
        while True:
            with suppress(DialFailed):
                await transport.dial([f"{address}/p2p/{SWARM.learner.peer_id}"])
            await trio.sleep(AGAIN_S)


async def main(role: str, address: str, members: Sequence[str]) -> None:
    if role == "operator":
        network = NetworkSection(listen=[address], announce=list(members))
        print("\n".join(await describe_addresses(network, await ask_members(SWARM.learner.seed, network))))
        return
    async with trio.open_nursery() as nursery:
        if role == "seeker":
            nursery.start_soon(seek, address)
            print("looking", flush=True)
            await trio.to_thread.run_sync(sys.stdin.read)
        elif role == "member":
            async with open_libp2p(os.urandom(32), [address]) as transport:
                print(transport.addresses()[0], flush=True)
                await trio.to_thread.run_sync(sys.stdin.read)
        else:
            told = [PeerAddresses(peer=PeerId(one.rpartition("/")[2]), addresses=[one]) for one in members]
            with tempfile.TemporaryDirectory() as root:
                async with open_learner(Path(root), [address], told) as learner:
                    print(write_invite(learner.invite), flush=True)
                    await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], sys.argv[3:])
