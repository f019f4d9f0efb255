"""Keeping a node at the newest version: hear of it, fetch its manifest and chunks, hand it over.

Announcements come by gossip and are repaired by asking: every newly connected peer, and one peer at random now and
then, the more seldom the longer nothing was new. What always holds: nothing is believed before the operator's word for
its signer was checked; nothing older than what this node knew or held before it was restarted is news; a version is
handed over only when every chunk was verified and the store has made it complete; what was in service before stays
there whatever fails here.

Loops: `run` consumes broadcasts; one task asks newcomers, one asks now and then; one fetches a version after the
other and is woken when there is one; one writes the newest announcement to disk, woken by news.
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
"""Repair of lost gossip after there was news, and pause before a failed fetch is tried again."""

ASK_SELDOM_S = 8 * ASK_EVERY_S
"""The longest pause between two questions, each of which costs 1.3 KB both ways. Gossip travels over streams that lose
nothing, by two dozen neighbours: it is lost where all of them have queues that are full."""

QUESTION_TIMEOUT_S = 5.0
"""An answer of 1 KiB takes a round trip; one silent peer must not hold up the asking."""

MANIFEST_PAUSE_S, MANIFEST_WAIT_S = 0.25, 10.0
"""An announcement outruns its manifest: how often, and how long, to ask before nobody is said to have it."""


LEARN_S = 120.0
"""For a manifest that is only on the way to a cheaper road: 60 MB at 4 Mbit/s. Its size is not announced, so it would
take a liar who trickles ten minutes to be found out, and meanwhile nothing is fetched."""


class NobodyHasIt(Exception):
    """No connected peer could give us the manifest."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A version that is complete in the store, how long that took, and by which road it came."""

    signed: SignedManifest
    seconds: float
    obtained: Obtained


@dataclass(kw_only=True)
class VersionFollower:
    """See the module's paragraph.

    Args:
        on_arrival: called with every version that is complete, each newer than the one before.
        report: told of peers' faults.
        trouble: told, in a sentence, of what went wrong here or what the user should see; not twice in a row the same.
        on_failure: called with each attempt to fetch the newest version that came to nothing, and why.
        piece_bytes: what a piece of a manifest has, as with everybody in the swarm.
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
        """The newest announcement as its learner signed it, empty when none is known."""
        return self.core.newest.raw if self.core.newest is not None else b""

    async def run(self) -> None:
        """Follow until cancelled, beginning with what the store remembers."""
        await self._take_up()
        broadcasts = await self.transport.subscribe(topic_of(self.authority.swarm), self._is_welcome)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._remember)
            nursery.start_soon(self._ask_newcomers, nursery)
            nursery.start_soon(self._ask_now_and_then)
            nursery.start_soon(self._fetch_versions)
            async for broadcast in broadcasts:
                self._take(broadcast.data, broadcast.source)

    # What is newest.

    async def _take_up(self) -> None:
        """Go on from where an earlier process stopped; what it knew is judged again, its certificate may have ended."""
        for held in self.store.versions():
            self.core.note_stored(held.version, held.hash, complete=held.complete)
        try:
            raw = await trio.to_thread.run_sync(self.store.newest)
            if raw:
                self._perform(self.core.hear(open_announcement(raw, self.authority, now_ms=_now_ms())))
        except (StoreError, OSError, PeerError) as error:
            self._say(f"The newest announcement that this node remembers cannot be used: {error}")

    async def _remember(self) -> None:
        """Write the newest announcement to disk whenever there is one; the disk is slow, and only the last matters."""
        while True:
            await self._news.wait()
            self._news = trio.Event()
            try:
                await trio.to_thread.run_sync(self.store.remember_newest, self.newest)
            except (StoreError, OSError) as error:
                self._say(f"The newest announcement could not be remembered: {error}")

    def _is_welcome(self, broadcast: Broadcast) -> bool:
        """Whether to take a broadcast and pass it on: genuine, no older than what we know, and not the same again. The
        learner repeats that for those beside it, and two dozen neighbours would pass it on two dozen times."""
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
            return newest  # most are repetitions, and need no second look
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
                        f"{second.hex()[:8]}). The second is refused; tell the operator."
                    )

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self.trouble(text)

    async def _ask_newcomers(self, nursery: trio.Nursery) -> None:
        while True:  # a channel of events ends when its reader falls behind; the next begins with who is here
            async for event in self.transport.events():
                if isinstance(event, PeerConnected):
                    nursery.start_soon(self._ask_newest, event.peer)

    async def _ask_now_and_then(self) -> None:
        """Try again what failed; ask somebody, after pauses that double up to ASK_SELDOM_S until there is news."""
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

    # Fetching it.

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
            if self.core.is_newest(announcement):  # else something newer is fetched at once, and nobody is worse off
                self._say(f"Version {announcement.version} could not be fetched: {error} The version in service stays.")
                self.on_failure(announcement.version, str(error))
            self._perform(self.core.note_failure(announcement))
            return
        if self.core.in_flight is announcement:  # not abandoned in the last moment
            self._said = ""
            self.on_arrival(Arrival(signed=signed, seconds=trio.current_time() - began, obtained=obtained))
        self._perform(self.core.note_complete(announcement))

    async def _fetch_manifest(self, announcement: SignedAnnouncement) -> SignedManifest:
        """Return the manifest from the store, from an attempt before (there may be no room to begin), or from whoever
        has it.

        Raises NobodyHasIt, or PeerError when its signer is at fault, who announced a version under a wrong name.
        """
        if announcement.manifest_bytes > MAX_ENVELOPE_BYTES:
            raise PeerError(
                Fault.OVERSIZED,
                f"its manifest has {announcement.manifest_bytes} bytes, and this program takes {MAX_ENVELOPE_BYTES}. "
                "Is there a newer one?",
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
                    raise PeerError(Fault.BROKEN_PROMISE, f"the manifest announced is that of {signed.version}.")
                return signed
            if trio.current_time() > deadline or not self.core.is_newest(announcement):
                asked = len(self.transport.connected_peers())
                raise NobodyHasIt(f"none of the {asked} connected peers has its manifest.")
            await trio.sleep(MANIFEST_PAUSE_S)

    async def _learn(self, manifest: ManifestHash) -> SignedManifest | None:
        """Ask around for a manifest that was not announced to us: one that a road may lead through."""
        try:
            with trio.move_on_after(LEARN_S):
                return await self.search.find(manifest)
        except PeerError as error:
            self._say(f"The manifest {manifest.hex()[:8]} cannot be used: {error}")
        return None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
