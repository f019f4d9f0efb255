"""Define what the serving side asks about a version that this node fetches or seeds, and what it reports about it.

`Serving` answers peers. The part of this node that hears what others hold knows which chunks to show to which peer, and
which request matters most. This is the interface between the two: `Serving` reports events, and asks before it answers.
Nothing here waits.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

from protocol.core.ids import Cid, ManifestHash, PeerId
from protocol.versions.manifest import ChunkRef, SignedManifest
from swarm.transfer.chunk_picker import OfChunk, OfPeer, PeerGained, PeerHas


class Followed(OfPeer):
    """`peer` wants this version from us."""


class Unfollowed(OfPeer):
    """`peer` has left, or wants another version."""


class Asked(OfChunk):
    """`peer` has requested `chunk` from us."""


class Begun(OfChunk):
    """`chunk` is on its way to `peer`."""


class Sent(OfChunk):
    """All of `chunk` has been sent to `peer`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle:
    """The uplink has room, and no waiting request to fill it."""


Note = Followed | Unfollowed | Asked | Begun | Sent | Idle


class ExchangeView(Protocol):
    """The part of this node that follows one version. Chunks are indices into the version's chunk table."""

    def take_note(self, note: Note) -> None:
        """Note an event on the serving side."""

    def index_of(self, cid: Cid) -> int | None:
        """Return the index of the chunk called `cid`; None if this version has none of that name."""

    def select_shown(self, peer: PeerId, held: int) -> int:
        """Return which of the chunks `held` to show to `peer`. Bit i is chunk i."""

    def knows(self, peer: PeerId, chunk: int) -> bool:
        """Return whether `peer` need not hear that we hold `chunk`, because it holds it itself."""

    def num_holders(self, chunk: int) -> int:
        """Return how many others are known to hold `chunk`."""

    def num_held(self, peer: PeerId) -> int:
        """Return how many chunks `peer` is known to hold; 0 if nothing is known of it."""

    def is_promised(self, peer: PeerId, chunk: int) -> bool:
        """Return whether we have offered `chunk` to `peer`, so that it should request it."""


class ExchangedVersion(ExchangeView):
    """A version about which peers are asked, and its own `ExchangeView` for the peers that follow it here.

    `wants_everything`: whether peers must also report chunks that they know we hold.
    """

    wants_everything: bool

    def __init__(self, signed: SignedManifest) -> None:
        self.signed = signed
        self.hash: ManifestHash = signed.hash
        self._index = {chunk.name: index for index, chunk in enumerate(signed.manifest.chunks)}

    @property
    def num_chunks(self) -> int:
        return len(self.signed.manifest.chunks)

    def chunk(self, index: int) -> ChunkRef:
        return self.signed.manifest.chunks[index]

    def index_of(self, cid: Cid) -> int | None:
        return self._index.get(cid)

    @abstractmethod
    def hear(self, event: PeerHas | PeerGained) -> None:
        """Hear from a peer what it holds of this version."""
