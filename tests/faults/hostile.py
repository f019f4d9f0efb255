"""Nodes that break the protocol, each in one way; in everything else they are as honest as `Node`.

Invariants:

- They speak through the real transport under a key of their own, so every accusation names the right node.
- The first line of a class says what it does wrong.
"""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from itertools import cycle, islice
from typing import Any

import trio

from benchmarks.network.founding import key_of
from protocol.core.codec import encode
from protocol.core.digest import digest_of
from protocol.core.ids import Cid, ManifestHash, PeerId, PolicyVersion
from protocol.core.limits import MANIFEST_PIECE_BYTES, MAX_MANIFEST_BYTES, MAX_REQUEST_BYTES
from protocol.versions import exchange
from protocol.versions.announcement import Announcement, announce
from swarm.store import ChunkStore
from swarm.transfer.chunk_cache import RecentChunks
from swarm.transport.flood import GOSSIP_PROTOCOL
from swarm.transport.framing import PREFIX, FrameStream
from swarm.transport.interface import PeerConnected, Stream, StreamBroken, StreamRefused
from tests.faults.node import Node, say

FLOOD = 100_000
"""Number of HAVE messages."""

DRIP_S = 1.0
"""Seconds between two bytes."""

ALL = bytes([255]) * 64
"""A bitmap of more chunks than any version here has."""


FORGED = digest_of(b"forged")
"""The hash of no manifest."""


class ForgetfulStore(ChunkStore):
    """A store that loses everything else when a patch is begun: it evicts what it can, and deletes the rest."""

    def begin_patch(self, manifest: ManifestHash, number: int) -> None:
        super().begin_patch(manifest, number)
        say("evicted", num=len(self.evict([manifest])))
        others = [held.hash for held in self.versions() if held.hash != manifest]
        for other in others:
            shutil.rmtree(self.directory(other))
        say("deleted", num=len(others))


class _FlippingStore:
    """A store that flips one bit of every chunk that is read."""

    def __init__(self, store: ChunkStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, cid: Cid) -> bytes | None:
        data = self._store.get(cid)
        return None if data is None else bytes([data[0] ^ 1]) + data[1:]


class _NothingRecent(RecentChunks):
    """Keeps no chunk, so that all are read from the store."""

    def add(self, cid: Cid, data: bytes) -> None:
        pass


class Flipping(Node):
    """Flips a bit in every chunk that it relays."""

    def shown_store(self) -> Any:
        return _FlippingStore(self.store)

    def start(self) -> None:
        super().start()
        self.serving.recent = _NothingRecent()


class Promising(Node):
    """Says that it has everything, and answers no request."""

    def start(self) -> None:
        super().start()
        self.transport.handle(exchange.EXCHANGE, self.promise)
        self.transport.handle(exchange.CHUNKS, self.answer)

    async def promise(self, stream: Stream) -> None:
        frames = FrameStream(stream, MAX_REQUEST_BYTES)
        while (want := await frames.receive(exchange.Want)) is not None:
            await frames.send(exchange.Have(manifest=want.manifest, bitmap=ALL))

    async def answer(self, stream: Stream) -> None:
        frames = FrameStream(stream, MAX_REQUEST_BYTES)
        while (request := await frames.receive(exchange.ChunkRequest)) is not None:
            say("requested", peer=self.names[stream.remote], what=type(request).__name__)


class Boasting(Promising):
    """Says that it has everything, answers no request, and fetches nothing either, as a complete node would."""

    follows = False


class Dripping(Promising):
    """Says that it has everything, and answers with a byte a second."""

    async def answer(self, stream: Stream) -> None:
        frames = FrameStream(stream, MAX_REQUEST_BYTES)
        request = await frames.receive(exchange.ChunkRequest)
        say("requested", peer=self.names[stream.remote], what=type(request).__name__)
        body = encode(exchange.Chunk(cid=request.cid, data=bytes(256 * 1024)))
        for byte in PREFIX.pack(len(body)) + body:
            await stream.send_all(bytes([byte]))
            await trio.sleep(DRIP_S)


class Flooding(Promising):
    """Answers a question for its chunks 100,000 times, in turn with everything and with nothing."""

    async def promise(self, stream: Stream) -> None:
        want = await FrameStream(stream, MAX_REQUEST_BYTES).receive(exchange.Want)
        bodies = [encode(exchange.Have(manifest=want.manifest, bitmap=bitmap)) for bitmap in (ALL, b"")]
        frames = [PREFIX.pack(len(body)) + body for body in bodies]
        sent = 0
        try:
            for frame in islice(cycle(frames), FLOOD):
                await stream.send_all(frame)
                sent += 1
        finally:
            say("flooded", peer=self.names[stream.remote], sent=sent)


class Garbling(Node):
    """Sends random bytes on every protocol, asked or not, and takes part in nothing."""

    def start(self) -> None:
        for protocol in (exchange.ASK, exchange.EXCHANGE, exchange.CHUNKS):
            self.transport.handle(protocol, self.garble)

    async def run(self, commands: Any) -> None:
        self.start()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._note_connections)
            nursery.start_soon(self.misbehave, nursery)
            say("ready", addresses=self.transport.addresses())
            async for command in commands:
                await self.obey(command, nursery)
            nursery.cancel_scope.cancel()

    async def misbehave(self, nursery: trio.Nursery) -> None:
        async for event in self.transport.events():
            if isinstance(event, PeerConnected):
                for protocol in (exchange.ASK, exchange.EXCHANGE, exchange.CHUNKS, GOSSIP_PROTOCOL):
                    for seed in range(8):
                        nursery.start_soon(self._open_and_garble, event.peer, protocol, seed)

    async def _open_and_garble(self, peer: PeerId, protocol: str, seed: int) -> None:
        with suppress(StreamBroken, StreamRefused):  # they had enough
            await self.garble(await self.transport.open_stream(peer, protocol), seed)

    async def garble(self, stream: Stream, seed: int = 1) -> None:
        """Send random lengths, or a right length with random bytes behind it."""
        rng = random.Random(f"{seed} {stream.protocol}")
        rubbish = rng.randbytes(64 * 1024)
        await stream.send_all(rubbish if seed % 2 else PREFIX.pack(1024) + rubbish)
        say("garbled", peer=self.names[stream.remote], protocol=stream.protocol)
        await stream.receive_some(1)


class Mute(Node):
    """Accepts questions, and answers none."""

    def start(self) -> None:
        super().start()
        self.transport.handle(exchange.ASK, self.keep_silent)

    async def keep_silent(self, stream: Stream) -> None:
        question = await FrameStream(stream, MAX_REQUEST_BYTES).receive(exchange.Question)
        say("asked", peer=self.names[stream.remote], what=type(question).__name__)
        await trio.sleep_forever()


class Forgetful(Node):
    """Does not pin the version in use, and loses the base of every patch that it begins: see `ForgetfulStore`."""

    def _put_in_service(self, manifest: ManifestHash) -> None:
        self.service = self.store.manifest(manifest)


class Forging(Node):
    """Announces versions that the learner did not sign, or an old one, to every peer that asks or listens."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._lie = self._old = b""

    def newest(self) -> bytes:
        return self._lie or super().newest()

    def start(self) -> None:
        super().start()
        self.transport.handle(exchange.ASK, self.answer_questions)

    async def answer_questions(self, stream: Stream) -> None:
        frames = FrameStream(stream, MAX_REQUEST_BYTES)
        while (question := await frames.receive(exchange.Question)) is not None:
            match question:
                case exchange.AskManifest(manifest=manifest):
                    held = self.store.manifest(ManifestHash(manifest))
                    number = held.version.version if held else None
                    say("wanted", peer=self.names[stream.remote], version=number, forged=manifest == FORGED)
                    await frames.send(self.show(ManifestHash(manifest)))
                case _:
                    await frames.send(exchange.TellNewest(announcement=self.newest()))

    def show(self, manifest: ManifestHash) -> exchange.Answer:
        raw = self.store.manifest_bytes(manifest)
        return exchange.NotHeld() if raw is None else exchange.TellManifest(manifest=raw)

    async def obey(self, command: dict[str, Any], nursery: trio.Nursery) -> None:
        match command:
            case {"do": "forge", "version": number}:
                await self._tell(self._forged(number))
            case {"do": "remember"}:
                self._old = self.following.newest
            case {"do": "replay"}:
                await self._tell(self._old)
            case _:
                await super().obey(command, nursery)

    def _forged(self, number: int) -> bytes:
        """Return an announcement that our own key signed, with the learner's certificate."""
        assert self.service is not None
        announcement = Announcement(
            version=PolicyVersion(1, number),
            manifest=FORGED,
            manifest_bytes=1000,
            total_bytes=1 << 20,
            certificate=self.service.manifest.certificate,
        )
        return announce(key_of(self.task.name), self.authority, announcement)

    async def _tell(self, lie: bytes) -> None:
        self._lie = lie
        await self.transport.publish(self.topic, lie)
        say("lied")


class RollingBack(Forging):
    """Relays announcements, and shows its oldest manifest instead of the one that they name."""

    def show(self, manifest: ManifestHash) -> exchange.Answer:
        return super().show(self.store.versions()[0].hash)


class Overstating(Forging):
    """Relays announcements, and begins to send a manifest of the largest size that is allowed."""

    def show(self, manifest: ManifestHash) -> exchange.Answer:
        return exchange.TellManifest(manifest=bytes(MANIFEST_PIECE_BYTES), total=MAX_MANIFEST_BYTES)


HOSTILE: dict[str, type[Node]] = {
    "flipping": Flipping,
    "promising": Promising,
    "boasting": Boasting,
    "dripping": Dripping,
    "flooding": Flooding,
    "garbling": Garbling,
    "mute": Mute,
    "forgetful": Forgetful,
    "forging": Forging,
    "rolling back": RollingBack,
    "overstating": Overstating,
}
