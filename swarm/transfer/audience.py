"""What the serving side knows of a version that this node fetches or scatters, and is asked about it.

`Serving` answers whoever asks; what of a version is worth showing to whom, and whose request matters most, is known to
the part of this node that hears what others hold. This is the line between them: `Serving` notes what happens, and asks
before it tells. Nothing here waits.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

from protocol.core.ids import Cid, ManifestHash, PeerId
from protocol.versions.manifest import ChunkRef, SignedManifest
from swarm.transfer.chunk_picker import OfChunk, OfPeer, PeerGained, PeerHas


class Followed(OfPeer):
    """`peer` wants this version of us."""


class Unfollowed(OfPeer):
    """`peer` has left, or wants something else."""


class Asked(OfChunk):
    """`peer` has requested `chunk` of us."""


class Begun(OfChunk):
    """`chunk` is on its way to `peer`."""


class Sent(OfChunk):
    """All of `chunk` has been sent to `peer`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Idle:
    """The uplink has room, and nothing that was requested is left to fill it."""


Note = Followed | Unfollowed | Asked | Begun | Sent | Idle


class ExchangeView(Protocol):
    """Those who follow one version here. Chunks are indices into its chunk table."""

    def take_note(self, note: Note) -> None:
        """Something happened on the serving side."""

    def index_of(self, cid: Cid) -> int | None:
        """The chunk called `cid`, None when it is none of this version's."""

    def select_shown(self, peer: PeerId, held: int) -> int:
        """Which of the chunks `held` (bit i is chunk i) `peer` is to know of."""

    def knows(self, peer: PeerId, chunk: int) -> bool:
        """Whether it would be no news to `peer` that we hold `chunk`, which it holds itself."""

    def num_holders(self, chunk: int) -> int:
        """How many others are known to hold `chunk`."""

    def num_held(self, peer: PeerId) -> int:
        """How many chunks `peer` is known to hold; 0 if nothing is known of it."""

    def is_promised(self, peer: PeerId, chunk: int) -> bool:
        """Whether we have asked `peer` to ask us for `chunk`."""


class ExchangedVersion(ExchangeView):
    """A version that peers are asked about, and its own `ExchangeView` for those who follow it here.

    `wants_everything`: whether peers are to tell of chunks, too, that they know we hold.
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
        """A peer said what it holds of this version."""
