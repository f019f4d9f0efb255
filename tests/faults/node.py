"""Run a node that obeys commands and reports its events, one JSON object a line.

It is put together as `volery` does it, without engine and work: the libp2p transport, the store on disk, serving,
distribution, following. The node that publishes does what a learner does.

Invariants:

- The version that a node reports as `in service` is complete, in the store, and pinned. Its bytes were read again for
  the answer.
- A node reports only what it knows from its own parts.

    it hears      dial (addresses)              keep a connection to the node there, as `volery` does
                  publish (directory, version)  be the learner; with `bases`, directories by version, offer patches
                  evict (keep)                  drop all versions but these
                  status                        say what there is
    it says       ready, connected, gone, announced, progress, complete, trouble, fault, published, status
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import trio

from benchmarks.network.founding import announcement_of, found, key_of, now_ms, publisher_of
from learner.artifacts.version_builder import Base
from protocol.core.errors import Fault, PeerError
from protocol.core.ids import ManifestHash, PeerId, PolicyVersion
from protocol.versions.announcement import open_announcement, topic_of
from protocol.versions.chunking import file_chunks
from protocol.versions.manifest import SignedManifest
from swarm.store import ChunkStore
from swarm.transfer.exchange import ChunkExchange
from swarm.transfer.serving import Knowledge, Serving
from swarm.transport.interface import Broadcast, DialFailed, PeerConnected, PeerDisconnected, Transport
from swarm.versions.follower import Arrival, VersionFollower

REDIAL_S = 0.5
"""Seconds until a lost connection is dialled again; in a real swarm introductions do that."""


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A node's identity. `kind`: a name in `program.KINDS`. `names`: all keys that it may meet."""

    name: str
    names: list[str]
    store: str
    listen: str
    kind: str = "honest"


def say(event: str, **fields: object) -> None:
    """Write one line, in one write."""
    print(json.dumps({"event": event, "at": time.monotonic(), **fields}), flush=True)


def digest_of_files(directory: Path) -> str:
    """Return one hash over names and bytes of a version's files."""
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        if not path.name.startswith("."):
            digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return digest.hexdigest()


class Node:
    """One node, from the first command to the last. Hostile ones are its subclasses."""

    follows = True

    def __init__(self, task: Assignment, transport: Transport, store: ChunkStore) -> None:
        self.task, self.transport, self.store = task, transport, store
        self.genesis, self.authority = found()
        self.topic = topic_of(self.authority.swarm)
        self.names = {key_of(name).peer_id: name for name in task.names}
        for peer in self.names:
            transport.trust(peer)  # as if the learner had introduced them
        self.published: dict[int, SignedManifest] = {}
        self.announcement = b""
        self.service: SignedManifest | None = None
        self.serving = Serving(
            transport=transport,
            store=self.shown_store(),
            knowledge=Knowledge(genesis=self.genesis, newest=self.newest, peers=lambda: []),
            report=self.report,
            trouble=self.trouble,
        )
        self.distribution = ChunkExchange(
            transport=transport, store=store, tell_gained=self.gained, report=self.report, serving=self.serving
        )
        self.following = VersionFollower(
            transport=transport,
            store=store,
            authority=self.authority,
            distribution=self.distribution,
            on_arrival=self.arrived,
            report=self.report,
            trouble=self.trouble,
        )

    # Methods that hostile nodes override.

    def shown_store(self) -> ChunkStore:
        """Return the store from which other nodes are served."""
        return self.store

    def newest(self) -> bytes:
        """Return the announcement that other nodes are sent as the newest."""
        return self.announcement or self.following.newest

    def start(self) -> None:
        """Begin to answer others."""
        self.serving.start()

    async def misbehave(self, nursery: trio.Nursery) -> None:
        """Do anything else that is hostile."""

    # The life of a node.

    async def run(self, commands: AsyncIterator[dict[str, Any]]) -> None:
        """Run until the commands end."""
        await self.transport.subscribe(self.topic, self._note_broadcast)
        self.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.distribution.run)
            nursery.start_soon(self._note_connections)
            self._take_up()
            if self.follows and not self.announcement:
                nursery.start_soon(self.following.run)
            nursery.start_soon(self.misbehave, nursery)
            say("ready", addresses=self.transport.addresses())
            async for command in commands:
                await self.obey(command, nursery)
            nursery.cancel_scope.cancel()

    async def obey(self, command: dict[str, Any], nursery: trio.Nursery) -> None:
        """Do what one command asks."""
        match command:
            case {"do": "dial", "addresses": addresses}:
                nursery.start_soon(self._keep_dialling, addresses)
            case {"do": "publish", "directory": directory, "version": version, "bases": bases}:
                await self._publish(Path(directory), version, {int(base): Path(path) for base, path in bases.items()})
            case {"do": "evict", "keep": keep}:
                held = [one for one in self.store.versions() if one.version.version in keep]
                gone = await trio.to_thread.run_sync(self.store.evict, [one.hash for one in held])
                say("evicted", num=len(gone))
            case {"do": "status"}:
                say("status", **await trio.to_thread.run_sync(self._status))
            case _:
                raise AssertionError(f"not a command: {command}")

    def _take_up(self) -> None:
        """Go on from the store's content: the newest complete version is in service, and a publisher
        publishes again.
        """
        if complete := [held for held in self.store.versions() if held.complete]:
            self._put_in_service(complete[-1].hash)
        if (raw := self.store.newest()) and open_announcement(raw, self.authority, now_ms=now_ms()).signer == (
            self.transport.peer_id
        ):
            self.announcement = raw
            assert self.service is not None
            self._seed(self.service)

    async def _keep_dialling(self, addresses: list[str]) -> None:
        peer = PeerId(addresses[0].rpartition("/")[2])
        while True:
            if peer not in self.transport.connected_peers():
                with suppress(DialFailed):
                    await self.transport.dial(addresses)
            await trio.sleep(REDIAL_S)

    async def _note_connections(self) -> None:
        async for event in self.transport.events():
            match event:
                case PeerConnected(peer=peer):
                    say("connected", peer=self.names[peer])
                case PeerDisconnected(peer=peer):
                    say("gone", peer=self.names[peer])

    # Versions.

    async def _publish(self, directory: Path, number: int, bases: dict[int, Path]) -> None:
        publisher = publisher_of(self.task.name)
        previous = self.published[max(self.published)].hash if self.published else None
        offered = [Base(manifest=self.published[base], directory=path) for base, path in bases.items()]
        made = await trio.to_thread.run_sync(
            publisher.publish, directory, PolicyVersion(1, number), previous, now_ms(), offered
        )
        signed = self.published[number] = made.signed
        await trio.to_thread.run_sync(self.store.adopt, signed, directory, made.patches)
        self._seed(signed)
        self._put_in_service(signed.hash)
        self.announcement = announcement_of(signed, publisher)
        await trio.to_thread.run_sync(self.store.remember_newest, self.announcement)
        patches = {str(base): patch.size for base, patch in zip(bases, signed.manifest.patches, strict=False)}
        say("published", version=number, bytes=signed.manifest.total_bytes, patches=patches)
        await self.transport.publish(self.topic, self.announcement)
        self.serving.tell_gained(signed.hash)

    def _seed(self, signed: SignedManifest) -> None:
        manifest = signed.manifest
        patch = next((patch for patch in manifest.patches if patch.base == manifest.previous), None)
        self.distribution.seed(signed, file_chunks(manifest) if patch is None else patch.chunks)

    def gained(self, signed: SignedManifest) -> None:
        self.serving.tell_gained(signed.hash)
        listed = sorted({index for entry in signed.manifest.files for index in entry.chunks})
        missing = set(self.store.missing(signed.hash))
        held = [index for index in listed if index not in missing]
        say("progress", version=signed.version.version, held=held, of=len(listed))

    def arrived(self, arrival: Arrival) -> None:
        self._put_in_service(arrival.signed.hash)
        obtained = arrival.obtained
        say(
            "complete",
            version=arrival.signed.version.version,
            digest=digest_of_files(self.store.directory(arrival.signed.hash)),
            seconds=arrival.seconds,
            by_peer=self._by_name(obtained.fetched.by_peer),
            patches=obtained.num_patches,
            patch_bytes=obtained.patch_bytes,
        )

    def _put_in_service(self, manifest: ManifestHash) -> None:
        before, self.service = self.service, self.store.manifest(manifest)
        self.store.pin(manifest)
        if before is not None:
            self.store.unpin(before.hash)

    # Reports about other nodes and about itself.

    def report(self, peer: PeerId, fault: Fault, detail: str) -> None:
        say("fault", peer=self.names[peer], fault=fault.value, detail=detail)

    def trouble(self, text: str) -> None:
        say("trouble", text=text)

    def _note_broadcast(self, broadcast: Broadcast) -> bool:
        try:
            version = open_announcement(broadcast.data, self.authority, now_ms=now_ms()).version.version
        except PeerError:
            version = None
        say("announced", peer=self.names[broadcast.source], version=version)
        return True

    def _status(self) -> dict[str, object]:
        service = None
        if self.service is not None:
            digest = digest_of_files(self.store.directory(self.service.hash))
            service = {"version": self.service.version.version, "digest": digest}
        held = [
            {"version": one.version.version, "complete": one.complete, "held": one.held_bytes, "of": one.total_bytes}
            for one in self.store.versions()
        ]
        return {
            "service": service,
            "versions": held,
            "fetched": self.distribution.fetched_bytes,
            "duplicates": self.distribution.duplicate_bytes,
            "served": {self.names[peer]: served.size_bytes for peer, served in self.serving.served.items()},
            "connected": sorted(self.names[peer] for peer in self.transport.connected_peers()),
        }

    def _by_name(self, sizes: dict[PeerId, int]) -> dict[str, int]:
        return {self.names[peer]: size for peer, size in sizes.items()}


async def read_commands() -> AsyncIterator[dict[str, Any]]:
    """Yield the lines of standard input, until it ends."""
    buffer = b""
    async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
        async for data in stdin:
            *lines, buffer = (buffer + data).split(b"\n")
            for line in lines:
                yield json.loads(line)
