"""Seed one version as its source: show each chunk to the right followers.

`swarm.transfer.super_seeding` decides which peer is given which chunk first; this module performs it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from protocol.core.ids import PeerId
from protocol.versions.manifest import SignedManifest
from swarm.transfer import super_seeding as scatter
from swarm.transfer.audience import ExchangedVersion, Note, Unfollowed
from swarm.transfer.serving import Serving
from swarm.transfer.super_seeding import Listen, Offer, Show, SuperSeeder


class VersionSeed(ExchangedVersion):
    """One version that this node seeds as its source."""

    wants_everything = True

    def __init__(
        self, signed: SignedManifest, core: SuperSeeder, serving: Serving, listen: Callable[[PeerId], None]
    ) -> None:
        super().__init__(signed)
        self.core = core
        self._serving = serving
        self._listen = listen
        self._offered: dict[PeerId, int] = {}
        self._open = _bits(chunk for chunk in range(self.num_chunks) if core.shows(chunk))

    def feed(self, event: scatter.Event) -> None:
        """Give `event` to the core and perform the effects."""
        if isinstance(event, Unfollowed):
            self._offered.pop(event.peer, None)
        for effect in self.core.handle(event, trio.current_time()):
            match effect:
                case Offer(peer=peer, chunk=chunk):
                    self._offered[peer] = self._offered.get(peer, 0) | 1 << chunk
                    self._serving.show(self.hash, peer)
                case Show(chunks=chunks):
                    self._open |= _bits(chunks)
                    self._serving.tell_gained(self.hash)
                case Listen(peer=peer):
                    self._listen(peer)

    hear = feed

    def take_note(self, note: Note) -> None:
        self.feed(note)

    def select_shown(self, peer: PeerId, held: int) -> int:
        return held & (self._open | self._offered.get(peer, 0))

    def knows(self, peer: PeerId, chunk: int) -> bool:
        return False

    def num_holders(self, chunk: int) -> int:
        return self.core.num_holders(chunk)

    def num_held(self, peer: PeerId) -> int:
        return self.core.num_held(peer)

    def is_promised(self, peer: PeerId, chunk: int) -> bool:
        return self.core.is_promised(peer, chunk)


def _bits(chunks: Iterable[int]) -> int:
    """Return a bitmap of these chunks as one integer.

    It is built from bytes, because adding up half a million powers of two took 2.4 s.
    """
    marked = bytearray()
    for chunk in chunks:
        if chunk // 8 >= len(marked):
            marked += bytes(chunk // 8 + 1024 - len(marked))
        marked[chunk // 8] |= 1 << chunk % 8
    return int.from_bytes(marked, "little")
