"""Provide peers for tests of the swarm: names, announcements, and whole nodes over the memory network.

Everything is a function of its arguments. Drivers run in virtual time: a test that takes `autojump_clock` and runs
under `inline_threads` depends on no clock and no scheduler of the machine.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from protocol.accounting.claims import Price
from protocol.core.codec import pack_tokens
from protocol.core.digest import digest_of
from protocol.core.envelope import sign
from protocol.core.errors import Fault
from protocol.core.identity import Keypair
from protocol.core.ids import LeaseId, ManifestHash, PeerId, PolicyVersion
from protocol.core.limits import MANIFEST_PIECE_BYTES, PROTOCOL_VERSION
from protocol.versions.announcement import Announcement, SignedAnnouncement, announce
from protocol.versions.manifest import SignedManifest
from protocol.work import Hello, Lease, Receipt, Sampler, Welcome
from swarm.store import ChunkStore
from swarm.testing.memory_transport import MemoryNetwork, MemoryTransport
from swarm.transfer.exchange import ChunkExchange
from swarm.transfer.serving import Knowledge, Serving
from swarm.versions.follower import Arrival, VersionFollower
from tests.support.store_fixture import SmallSwarm, fill


def key_of(name: str) -> Keypair:
    """Return the key of the peer called `name`."""
    return Keypair(random.Random(f"key of {name}").randbytes(32))


def peer_of(name: str) -> PeerId:
    """Return the peer id of the peer called `name`."""
    return key_of(name).peer_id


def hash_of(text: str) -> ManifestHash:
    return ManifestHash(digest_of(text.encode()))


def heard_of(version: int, *, incarnation: int = 1, manifest: str = "") -> SignedAnnouncement:
    """Return an announcement as the cores see it, its signature already checked."""
    name = PolicyVersion(incarnation, version)
    return SignedAnnouncement(
        raw=f"{name} {manifest}".encode(),
        signer=peer_of("learner"),
        version=name,
        manifest=hash_of(manifest or str(name)),
        manifest_bytes=1,
        total_bytes=1,
    )


def announce_manifest(swarm: SmallSwarm, signed: SignedManifest, *, by: Keypair | None = None) -> bytes:
    """Return the announcement of `signed` as the learner, or `by`, would send it."""
    return announce(
        by or swarm.learner,
        swarm.authority,
        Announcement(
            version=signed.version,
            manifest=signed.hash,
            manifest_bytes=len(signed.raw),
            total_bytes=signed.manifest.total_bytes,
            certificate=swarm.certificate,
        ),
    )


NOW_MS = 1_000_000
"""The time of all clocks in tests of work."""


def lease_id_of(number: int) -> LeaseId:
    return LeaseId(number.to_bytes(16, "big"))


def lease_envelope(swarm: SmallSwarm, number: int, *, peer: PeerId, by: Keypair | None = None) -> bytes:
    """Return lease `number` for `peer`, signed by the learner, or by `by`."""
    lease = Lease(
        id=lease_id_of(number),
        peer=peer,
        task="reverse",
        prompt=pack_tokens([1, 2, 3]),
        seeds=[number],
        sampler=Sampler(),
        stop_ids=[0],
        max_new_tokens=8,
        minimum=PolicyVersion(1, 0),
        issued_ms=NOW_MS,
        deadline_ms=NOW_MS + 60_000,
    )
    return sign(by or swarm.learner, swarm.authority.swarm, lease)


def receipt_envelope(
    swarm: SmallSwarm, number: int, *, peer: PeerId, by: Keypair | None = None, tokens: int = 5
) -> bytes:
    """Return the receipt for lease `number` of `peer`, signed by the learner, or by `by`."""
    receipt = Receipt(
        lease=lease_id_of(number),
        peer=peer,
        version=PolicyVersion(1, 1),
        issued_ms=NOW_MS,
        tokens=tokens,
        verdicts=[],
        certificate=swarm.certificate,
    )
    return sign(by or swarm.learner, swarm.authority.swarm, receipt)


def hello_from(name: str, **changes: Any) -> Hello:
    return Hello(protocol=PROTOCOL_VERSION, name=name, price=Price(), **changes)


def welcome_with(*, heartbeat_ms: int = 1000, **changes: Any) -> Welcome:
    terms = {"protocol": PROTOCOL_VERSION, "now_ms": NOW_MS, "staleness": 2, "publish_every": 1}
    return Welcome(**terms | {"heartbeat_ms": heartbeat_ms} | changes)


def inline_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Run work for worker threads at once: a virtual clock must not run ahead of a real thread."""

    async def run_sync(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        await trio.lowlevel.checkpoint()
        return function(*args)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)
    yield


@dataclass(kw_only=True)
class SwarmNode:
    """One node with everything but an engine, and the reports of its drivers."""

    name: str
    transport: MemoryTransport
    store: ChunkStore
    swarm: SmallSwarm
    serving: Serving
    distribution: ChunkExchange
    following: VersionFollower
    faults: list[tuple[PeerId, Fault]]
    troubles: list[str]
    arrivals: list[Arrival]
    changed: trio.Event = field(default_factory=trio.Event)

    @property
    def peer(self) -> PeerId:
        return self.transport.peer_id

    async def dial(self, *others: SwarmNode) -> None:
        for other in others:
            await self.transport.dial(other.transport.addresses())

    def hold(self, signed: SignedManifest, files: Mapping[str, bytes]) -> SignedManifest:
        """Hold all of a version."""
        fill(self.store, signed, files)
        return signed

    async def fetch(self, signed: SignedManifest) -> dict[PeerId, int]:
        """Fetch a version as `VersionFollower` does; return the bytes taken from each peer."""
        self.store.begin(signed)
        fetched = await self.distribution.fetch(signed)
        self.store.finish(signed.hash)
        return fetched.by_peer

    async def arrival_of(self, signed: SignedManifest) -> Arrival:
        """Wait until `VersionFollower` has handed a version over."""
        while True:
            for arrival in self.arrivals:
                if arrival.signed.hash == signed.hash:
                    return arrival
            self.changed = trio.Event()
            await self.changed.wait()


@asynccontextmanager
async def open_node(
    network: MemoryNetwork,
    swarm: SmallSwarm,
    root: Path,
    name: str,
    *,
    listens: bool = True,
    serves: bool = True,
    fetches: bool = True,
    follows: bool = False,
    quota_bytes: int | None = None,
    piece_bytes: int = MANIFEST_PIECE_BYTES,
) -> AsyncIterator[SwarmNode]:
    """Run a node while the block lasts; its store in `root`/`name` outlives it."""
    faults: list[tuple[PeerId, Fault]] = []
    troubles: list[str] = []
    with ChunkStore.open(root / name, swarm.authority, quota_bytes=quota_bytes) as store:
        async with (
            network.node(name, listens=listens, peer_id=peer_of(name)) as transport,
            trio.open_nursery() as tasks,
        ):
            node = _assemble(name, transport, store, swarm, faults, troubles, piece_bytes)
            if serves:
                node.serving.start()
            if fetches or follows:
                tasks.start_soon(node.distribution.run)
            if follows:
                tasks.start_soon(node.following.run)
            yield node
            tasks.cancel_scope.cancel()


def _assemble(
    name: str,
    transport: MemoryTransport,
    store: ChunkStore,
    swarm: SmallSwarm,
    faults: list[tuple[PeerId, Fault]],
    troubles: list[str],
    piece_bytes: int,
) -> SwarmNode:
    def report(peer: PeerId, fault: Fault, detail: str) -> None:
        assert detail
        faults.append((peer, fault))

    def arrived(arrival: Arrival) -> None:
        node.arrivals.append(arrival)
        node.changed.set()

    serving = Serving(
        transport=transport,
        store=store,
        knowledge=Knowledge(genesis=swarm.genesis, newest=lambda: node.following.newest, peers=lambda: []),
        report=report,
        trouble=troubles.append,
        piece_bytes=piece_bytes,
    )
    distribution = ChunkExchange(
        transport=transport,
        store=store,
        tell_gained=lambda signed: serving.tell_gained(signed.hash),
        report=report,
        serving=serving,
        rng=random.Random(name),
    )
    following = VersionFollower(
        transport=transport,
        store=store,
        authority=swarm.authority,
        distribution=distribution,
        on_arrival=arrived,
        report=report,
        trouble=troubles.append,
        rng=random.Random(name),
        piece_bytes=piece_bytes,
    )
    node = SwarmNode(
        name=name,
        transport=transport,
        store=store,
        swarm=swarm,
        serving=serving,
        distribution=distribution,
        following=following,
        faults=faults,
        troubles=troubles,
        arrivals=[],
    )
    return node


def indices(bitmap: bytes) -> Sequence[int]:
    """Return the chunks that a Have marks."""
    return [8 * i + bit for i, byte in enumerate(bitmap) for bit in range(8) if byte >> bit & 1]
