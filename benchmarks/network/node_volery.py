"""Run a node of ours: the libp2p transport, the store on disk, serving and distribution, combined as `volery` does it.

The source publishes the payload as a signed version, as a learner does. Before GO, peers ask it for announcement and
manifest; after GO, they do what `VersionFollower` does with a new version: begin, fetch, finish.

Invariants:

- Every pair of nodes has one connection before GO, and everything on it is encrypted.
- Every chunk is verified before it is written or relayed.
- DONE means that the version is complete, on the disk, under its final name.
"""

from __future__ import annotations

from pathlib import Path

import trio

from benchmarks.network.founding import PORT, announcement_of, found, key_of, now_ms, publisher_of
from benchmarks.network.payload import FILE_NAME
from benchmarks.network.program_end import Assignment, ProgramEnd
from node.runtime.startup import prepare_process
from protocol.core.errors import Fault
from protocol.core.ids import PeerId, PolicyVersion
from protocol.versions import exchange
from protocol.versions.announcement import open_announcement
from protocol.versions.manifest import SignedManifest, open_manifest
from swarm.libp2p import open_libp2p
from swarm.store import ChunkStore
from swarm.transfer.exchange import ChunkExchange
from swarm.transfer.serving import Knowledge, Serving
from swarm.transport.error_groups import first_cause
from swarm.transport.interface import DialFailed, PeerConnected, Transport
from swarm.versions.manifest_search import ask

REDIAL_S = 0.2
"""Pause before a node that is still starting is dialled again."""


class Node:
    """One node of the swarm, which lives for one run."""

    def __init__(self, task: Assignment, transport: Transport, store: ChunkStore) -> None:
        self.task = task
        self.transport = transport
        self.store = store
        self.genesis, self.authority = found()
        self.peers = {key_of(name).peer_id: name for name in task.names}
        self.announcement = b""
        self.serving = Serving(
            transport=transport,
            store=store,
            knowledge=Knowledge(genesis=self.genesis, newest=lambda: self.announcement, peers=lambda: []),
            report=complain,
        )
        self.distribution = ChunkExchange(
            transport=transport,
            store=store,
            tell_gained=lambda signed: self.serving.tell_gained(signed.hash),
            report=complain,
            serving=self.serving,
        )
        self.published: SignedManifest | None = None

    async def meet_all(self) -> None:
        """Dial the nodes before us, wait for those after us. All are members to each other, as if introduced."""
        for peer in self.peers:
            self.transport.trust(peer)
        for index in range(self.task.index):
            await self._reach(self.task.names[index], self.task.addresses[index])
        others = set(self.peers) - {self.transport.peer_id}
        async for event in self.transport.events():
            if isinstance(event, PeerConnected):
                others.discard(event.peer)
            if not others:
                return

    async def _reach(self, name: str, address: str) -> None:
        while True:
            try:
                await self.transport.dial([f"/ip4/{address}/tcp/{PORT}/p2p/{key_of(name).peer_id}"])
                return
            except DialFailed:
                await trio.sleep(REDIAL_S)

    def publish(self) -> None:
        """Publish as the learner does: the payload becomes a version in the store."""
        publisher = publisher_of(self.task.names[0])
        directory = self.task.payload.parent
        signed = self.published = publisher.publish(directory, PolicyVersion(1, 1), None, now_ms()).signed
        self.store.adopt(signed, directory)
        self.announcement = announcement_of(signed, publisher)

    async def learn_version(self) -> SignedManifest:
        """Ask the source for its newest version, and return the manifest."""
        source = key_of(self.task.names[0]).peer_id
        told = await ask(self.transport, source, exchange.AskNewest())
        assert isinstance(told, exchange.TellNewest)
        self.announcement = told.announcement
        newest = open_announcement(told.announcement, self.authority, now_ms=now_ms())
        shown = await ask(self.transport, source, exchange.AskManifest(manifest=newest.manifest))
        assert isinstance(shown, exchange.TellManifest)
        return open_manifest(shown.manifest, self.authority)

    async def fetch(self, signed: SignedManifest) -> None:
        """Fetch the version, as `VersionFollower` does."""
        await trio.to_thread.run_sync(self.store.begin, signed)
        with self.store.hold(signed.hash):
            self.distribution.tell_gained(signed)
            await self.distribution.fetch(signed)
            await trio.to_thread.run_sync(self.store.finish, signed.hash)

    def traffic(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return the bytes sent to, and received from, each neighbour: stream payload, control messages included."""
        moved = {self.peers[peer]: traffic for peer, traffic in self.transport.traffic().items()}
        return {name: m.sent for name, m in moved.items()}, {name: m.received for name, m in moved.items()}


def complain(peer: PeerId, fault: Fault, detail: str) -> None:
    """Fail: no peer here is faulty, so a report is a defect of ours."""
    raise AssertionError(f"{peer} is reported for {fault.value}: {detail}")


def since(now: dict[str, int], then: dict[str, int]) -> dict[str, int]:
    return {name: size - then.get(name, 0) for name, size in now.items()}


async def play(program_end: ProgramEnd) -> None:
    """Perform one run, from READY to REPORT."""
    task = program_end.assignment
    listen = f"/ip4/{task.address}/tcp/{PORT}"
    with ChunkStore.open(task.directory / "store", found()[1]) as store, first_cause():
        async with open_libp2p(key_of(task.names[task.index]).seed, [listen]) as transport:
            node = Node(task, transport, store)
            if task.is_source:
                node.publish()
            node.serving.start()
            async with trio.open_nursery() as nursery:
                await node.meet_all()
                file, up, down = await follow(program_end, node, nursery)
                program_end.report(file, up=up, down=down)
                nursery.cancel_scope.cancel()


async def follow(
    program_end: ProgramEnd, node: Node, nursery: trio.Nursery
) -> tuple[Path, dict[str, int], dict[str, int]]:
    """Perform a run from the moment that all are connected to its end; return the file, and the bytes sent and received
    since GO by neighbour."""
    file = node.task.payload
    if not node.task.is_source:
        signed = await node.learn_version()
    nursery.start_soon(node.distribution.run)
    program_end.ready()
    await trio.to_thread.run_sync(program_end.wait_go)
    up, down = node.traffic()
    if node.published is not None:
        node.distribution.seed(node.published)
    else:
        await node.fetch(signed)
        program_end.done()
        file = node.store.directory(signed.hash) / FILE_NAME
    await trio.to_thread.run_sync(program_end.wait_end)
    up_now, down_now = node.traffic()
    return file, since(up_now, up), since(down_now, down)


if __name__ == "__main__":
    prepare_process()
    trio.run(play, ProgramEnd())
