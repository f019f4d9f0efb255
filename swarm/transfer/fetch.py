"""Hold the state of one fetch: the version, its plan, and the peers that its bytes came from.

`swarm.transfer.exchange` performs the plan's decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import trio

from protocol.core.ids import PeerId
from protocol.versions.manifest import SignedManifest
from swarm.transfer.audience import Begun, ExchangedVersion, Note
from swarm.transfer.chunk_picker import ChunkPicker, Event, PeerGained, PeerHas


class Starved(Exception):
    """No connected peer that we would still ask holds the missing chunks."""


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """The bytes of one fetch, by the peer that they came from.

    `givers` maps each chunk of the version that came from a peer to that peer. It includes fetches of the same version
    just before this one.
    """

    by_peer: dict[PeerId, int]
    givers: Mapping[int, PeerId] = field(default_factory=dict)


class VersionFetch(ExchangedVersion):
    """One version that this node fetches. `feed` gives an event to `plan` while the version is fetched."""

    wants_everything = False

    def __init__(self, signed: SignedManifest, plan: ChunkPicker, feed: Callable[[Event, VersionFetch], None]) -> None:
        super().__init__(signed)
        self.plan = plan
        self._feed = feed
        self.done = trio.Event()
        self.failure: Exception | None = None
        self.fed_at = trio.current_time()
        self.by_peer: dict[PeerId, int] = {}
        self.givers: dict[int, PeerId] = {}

    def fail(self, error: Exception) -> None:
        """End the fetch with `error`; the first error counts."""
        self.failure = self.failure or error
        self.done.set()

    def hear(self, event: PeerHas | PeerGained) -> None:
        self._feed(event, self)

    # For peers that fetch it from us meanwhile.

    def take_note(self, note: Note) -> None:
        if isinstance(note, Begun):  # the peer will not tell us: it knows that we hold the chunk
            self.hear(PeerGained(peer=note.peer, chunks=(note.chunk,)))

    def select_shown(self, peer: PeerId, held: int) -> int:
        return held

    def knows(self, peer: PeerId, chunk: int) -> bool:
        return self.plan.holds(peer, chunk)

    def num_holders(self, chunk: int) -> int:
        return self.plan.num_holders(chunk)

    def num_held(self, peer: PeerId) -> int:
        return self.plan.num_held(peer)

    def is_promised(self, peer: PeerId, chunk: int) -> bool:
        return False
