"""One version on its way here: what is fetched, by which plan, and from whom its bytes came.

`swarm.transfer.exchange` performs what the plan decides.
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
    """Nobody who is connected, and whom we would still ask, holds the missing chunks."""


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """Bytes that one fetch took, by the peer they came from.

    `givers` are the chunks of the version that came from peers, with those of fetches of it just before this one.
    """

    by_peer: dict[PeerId, int]
    givers: Mapping[int, PeerId] = field(default_factory=dict)


class VersionFetch(ExchangedVersion):
    """One version on its way here. `feed` gives an event to `plan`, while the version is fetched."""

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
        """End the fetch with `error`; the first one counts."""
        self.failure = self.failure or error
        self.done.set()

    def hear(self, event: PeerHas | PeerGained) -> None:
        self._feed(event, self)

    # For those who fetch it from us meanwhile.

    def take_note(self, note: Note) -> None:
        if isinstance(note, Begun):  # it will not tell us, who hold it
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
