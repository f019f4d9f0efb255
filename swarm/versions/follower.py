"""Keep a node at the newest version: receive its announcement, fetch its manifest and chunks, pass it to the node.

Announcements arrive by gossip. To repair lost ones, the node asks every newly connected peer, and from time to time a
random peer, less often the longer there was nothing new.

Invariants:

- No announcement or manifest is accepted before its signer's certificate from the operator was checked.
- A version that is older than those this node knew or held before its restart is not new.
- A version is passed on only after every chunk was verified and the store has marked it as complete.
- The active version stays in use if anything fails here.

Loops: `run` consumes broadcasts. One task asks newly connected peers, and one asks from time to time. One fetches
versions one after the other, woken when there is one. One writes the newest announcement to disk, woken when it
changes.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

from protocol.core.errors import Fault, PeerError
from protocol.core.genesis import Authority
from protocol.core.ids import ManifestHash, PeerId, PolicyVersion
from protocol.core.limits import MANIFEST_PIECE_BYTES
from protocol.versions import exchange
from protocol.versions.announcement import SignedAnnouncement, open_announcement, topic_of
from protocol.versions.manifest import SignedManifest
from protocol.versions.manifest_pieces import MAX_ENVELOPE_BYTES
from swarm.store import ChunkStore, StoreError
from swarm.transfer.exchange import ChunkExchange
from swarm.transfer.fetch import Starved
from swarm.transport.interface import Broadcast, PeerConnected, Report, StreamBroken, StreamRefused, Transport
from swarm.versions.announcements import Abandon, Announcements, Effect, Equivocation, Fetch, Relay
from swarm.versions.fetcher import Obtained, VersionFetcher
from swarm.versions.manifest_search import ManifestSearch, ask

ASK_EVERY_S = 3.0
"""Pause in seconds before the next question after a new announcement, and before a failed fetch is tried again."""

ASK_SELDOM_S = 8 * ASK_EVERY_S
"""Longest pause in seconds between two questions, each of which costs 1.3 KB both ways. Gossip travels over reliable
streams from two dozen neighbours, so it is lost only if the queues of all of them are full."""

QUESTION_TIMEOUT_S = 5.0
"""Seconds to wait for an answer of 1 KiB, which takes a round trip. One silent peer must not delay the questions."""

MANIFEST_PAUSE_S, MANIFEST_WAIT_S = 0.25, 10.0
"""An announcement may arrive before any neighbour has its manifest. Seconds between two searches, and in total, before
the search fails."""


LEARN_S = 120.0
"""Seconds to fetch a manifest that may allow a cheaper route: 60 MB at 4 Mbit/s. Its size is not announced, so a
dishonest peer that sends slowly could delay the fetch for ten minutes."""


class NobodyHasIt(Exception):
    """No connected peer has the manifest."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A version that is complete in the store, the seconds that it took, and its route."""

    signed: SignedManifest
    seconds: float
    obtained: Obtained


@dataclass(kw_only=True)
class VersionFollower:
    """Keeps one node at the newest version.

    Args:
        on_arrival: function that is called with every complete version, each newer than the one before.
        report: function that is called with peers' faults.
        trouble: function that is called with a sentence for the owner; never twice in a row with the same one.
        on_failure: function that is called with version and reason when a fetch of the newest version failed.
        piece_bytes: size of a piece of a manifest in bytes, the same for all nodes of the swarm.
    """

    transport: Transport
    store: ChunkStore
    authority: Authority
    distribution: ChunkExchange
    on_arrival: Callable[[Arrival], None]
    report: Report
    trouble: Callable[[str], None]
    on_failure: Callable[[PolicyVersion, str], None] = lambda version, reason: None
    rng: random.Random = field(default_factory=random.Random)
    core: Announcements = field(default_factory=Announcements)
    piece_bytes: int = MANIFEST_PIECE_BYTES
    search: ManifestSearch = field(init=False)
    _fetching: trio.CancelScope = field(default_factory=trio.CancelScope)
    _begun: trio.Event = field(default_factory=trio.Event)
    _news: trio.Event = field(default_factory=trio.Event)
    _ask_pause_s: float = ASK_EVERY_S
    _said: str = ""
    _manifest: SignedManifest | None = None

    def __post_init__(self) -> None:
        self.search = ManifestSearch(
            transport=self.transport,
            authority=self.authority,
            report=self.report,
            rng=self.rng,
            piece_bytes=self.piece_bytes,
        )

    @property
    def obtaining(self) -> VersionFetcher:
        return VersionFetcher(store=self.store, distribution=self.distribution, learn=self._learn, trouble=self._say)

    @property
    def newest(self) -> bytes:
        """The newest announcement as the learner signed it; empty if none is known."""
        return self.core.newest.raw if self.core.newest is not None else b""

    async def run(self) -> None:
        """Follow until cancelled, beginning with the state of the store."""
        await self._take_up()
        broadcasts = await self.transport.subscribe(topic_of(self.authority.swarm), self._is_welcome)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._remember)
            nursery.start_soon(self._ask_newcomers, nursery)
            nursery.start_soon(self._ask_now_and_then)
            nursery.start_soon(self._fetch_versions)
            async for broadcast in broadcasts:
                self._take(broadcast.data, broadcast.source)

    # Find out the newest version.

    async def _take_up(self) -> None:
        """Continue from the state of an earlier process. Its newest announcement is checked again, because the
        certificate may have ended."""
        for held in self.store.versions():
            self.core.note_stored(held.version, held.hash, complete=held.complete)
        try:
            raw = await trio.to_thread.run_sync(self.store.newest)
            if raw:
                self._perform(self.core.hear(open_announcement(raw, self.authority, now_ms=_now_ms())))
        except (StoreError, OSError, PeerError) as error:
            self._say(f"The newest announcement in this node's store cannot be used: {error}")

    async def _remember(self) -> None:
        """Write each newest announcement to disk. The disk may be slow; only the last announcement matters."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            try:
                await trio.to_thread.run_sync(self.store.remember_newest, self.newest)
            except (StoreError, OSError) as error:
                self._say(f"The newest announcement could not be written to the store: {error}")

    def _is_welcome(self, broadcast: Broadcast) -> bool:
        """Return whether to accept a broadcast and forward it: it is genuine, not older than the newest, and not the
        same again.

        The learner repeats the newest announcement for its neighbours. If all nodes forwarded it, each would receive it
        from two dozen neighbours.
        """
        announcement = self._judge(broadcast.data, broadcast.source)
        newest = self.core.newest
        return announcement is not None and (
            newest is None or (announcement.version >= newest.version and announcement is not newest)
        )

    def _take(self, raw: bytes, source: PeerId) -> None:
        if (announcement := self._judge(raw, source)) is not None:
            self._perform(self.core.hear(announcement))

    def _judge(self, raw: bytes, source: PeerId) -> SignedAnnouncement | None:
        if (newest := self.core.newest) is not None and raw == newest.raw:
            return newest  # most are repetitions, and need no second check
        try:
            return open_announcement(raw, self.authority, now_ms=_now_ms())
        except PeerError as error:
            self.report(source, error.fault, error.detail)
            return None

    def _perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Fetch():
                    self._begun.set()
                case Abandon():
                    self._fetching.cancel()
                case Relay():
                    self._news.set()
                    self._ask_pause_s = ASK_EVERY_S
                case Equivocation(version=version, first=first, second=second):
                    self._say(
                        f"The learner signed two different manifests for version {version} ({first.hex()[:8]} and "
                        f"{second.hex()[:8]}). This node refuses the second. Tell the operator."
                    )

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self.trouble(text)

    async def _ask_newcomers(self, nursery: trio.Nursery) -> None:
        while True:  # a channel of events ends if its reader falls behind; the next begins with the connected peers
            async for event in self.transport.events():
                if isinstance(event, PeerConnected):
                    nursery.start_soon(self._ask_newest, event.peer)

    async def _ask_now_and_then(self) -> None:
        """Retry a failed fetch, and ask a random peer for the newest version.

        The pauses between questions double up to ASK_SELDOM_S until there is a new announcement.
        """
        asked_at = trio.current_time()
        while True:
            await trio.sleep(ASK_EVERY_S)
            self._perform(self.core.retry())
            peers = sorted(self.transport.connected_peers())
            if peers and trio.current_time() >= asked_at + self._ask_pause_s:
                self._ask_pause_s = min(2 * self._ask_pause_s, ASK_SELDOM_S)
                asked_at = trio.current_time()
                await self._ask_newest(self.rng.choice(peers))

    async def _ask_newest(self, peer: PeerId) -> None:
        try:
            answer = await ask(self.transport, peer, exchange.AskNewest(), timeout_s=QUESTION_TIMEOUT_S)
        except (StreamBroken, StreamRefused, trio.TooSlowError):
            return
        except PeerError as error:
            self.report(peer, error.fault, error.detail)
            return
        if isinstance(answer, exchange.TellNewest) and answer.announcement:
            self._take(answer.announcement, peer)

    # Fetch the newest version.

    async def _fetch_versions(self) -> None:
        while True:
            while (announcement := self.core.in_flight) is None:
                self._begun = trio.Event()
                await self._begun.wait()
            with trio.CancelScope() as self._fetching:
                await self._fetch(announcement)

    async def _fetch(self, announcement: SignedAnnouncement) -> None:
        began = trio.current_time()
        try:
            signed = await self._fetch_manifest(announcement)
            obtained = await self.obtaining.obtain(signed)
        except (StoreError, OSError, NobodyHasIt, Starved, PeerError) as error:
            if self.core.is_newest(announcement):  # otherwise a newer version is fetched at once: no need to report
                self._say(
                    f"Version {announcement.version} could not be fetched: {error} The active version stays in use."
                )
                self.on_failure(announcement.version, str(error))
            self._perform(self.core.note_failure(announcement))
            return
        if self.core.in_flight is announcement:  # it was not abandoned at the last moment
            self._said = ""
            self.on_arrival(Arrival(signed=signed, seconds=trio.current_time() - began, obtained=obtained))
        self._perform(self.core.note_complete(announcement))

    async def _fetch_manifest(self, announcement: SignedAnnouncement) -> SignedManifest:
        """Return the manifest from the store, from an earlier attempt (there may be no room to begin), or from a peer.

        Raises NobodyHasIt, or PeerError if its signer is at fault, for example announced a version with a wrong name.
        """
        if announcement.manifest_bytes > MAX_ENVELOPE_BYTES:
            raise PeerError(
                Fault.OVERSIZED,
                f"its manifest has {announcement.manifest_bytes} bytes, but this program accepts at most "
                f"{MAX_ENVELOPE_BYTES}. Update volery if there is a newer release.",
            )
        deadline = trio.current_time() + MANIFEST_WAIT_S
        while True:
            signed = self.store.manifest(announcement.manifest) or self._manifest
            if signed is None or signed.hash != announcement.manifest:
                signed = await self.search.find(
                    announcement.manifest,
                    size_bytes=announcement.manifest_bytes,
                    in_a_hurry=lambda: not self.core.is_newest(announcement),
                )
            if signed is not None:
                self._manifest = signed
                if signed.version != announcement.version:
                    raise PeerError(Fault.BROKEN_PROMISE, f"the announced manifest is that of {signed.version}.")
                return signed
            if trio.current_time() > deadline or not self.core.is_newest(announcement):
                asked = len(self.transport.connected_peers())
                raise NobodyHasIt(f"none of the {asked} connected peers has its manifest.")
            await trio.sleep(MANIFEST_PAUSE_S)

    async def _learn(self, manifest: ManifestHash) -> SignedManifest | None:
        """Ask peers for a manifest that was not announced, because it may allow a cheaper route."""
        try:
            with trio.move_on_after(LEARN_S):
                return await self.search.find(manifest)
        except PeerError as error:
            self._say(f"The manifest {manifest.hex()[:8]} cannot be used: {error}")
        return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
