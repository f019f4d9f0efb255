"""Whom to ask for one manifest, when to ask the next peer as well, and whom to leave.

    not asked --Ask--> asked --PieceCame--> carrying --WholeCame--> checked
                         +--Ended             +--Ended, Leave

A pure core. What always holds: the next peer is asked in the moment in which none of those asked keeps up, that is, has
been heard of lately and is not too long over a piece; a peer is asked once; and at most MAX_CARRIERS peers are beyond
their first piece, so that memory is bounded by as many manifests, and one piece of each peer else. When there are more,
the slowest is left: who holds a place must be faster than those who wait for one. A hostile peer thus costs a second if
it is silent and a piece's time if it trickles, and whoever is honest is asked meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.core.ids import PeerId
from protocol.core.limits import MANIFEST_PIECE_BYTES
from swarm.transfer.chunk_picker import OfPeer

MANIFEST_PATIENCE_S, MANIFEST_RATE = 1.0, 500_000
"""How long a peer may be silent before the next is asked as well, and the bytes a second at which a piece is granted
time besides: a peer that is frozen then costs a second, and a slow line does not carry one manifest twice."""

MAX_CARRIERS = 2
"""Peers whose manifests may be here beyond the first piece: one, and one that may be better."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """Of `peer`, `size_bytes` have come so far, parts of pieces included."""

    peer: PeerId
    size_bytes: int


class PieceCame(OfPeer):
    """A piece of `peer` is whole, and it is asked for another."""


class WholeCame(OfPeer):
    """All of `peer` is here, and being checked."""


class Ended(OfPeer):
    """Nothing more will come of `peer`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """Time has passed, or somebody ended, and all that was heard has been said: is another to be asked?

    `present` are the peers that may be, in the order in which they should.
    """

    present: Sequence[PeerId]


Event = Heard | PieceCame | WholeCame | Ended | Tick


class Ask(OfPeer):
    """Effect: ask `peer`."""


class Leave(OfPeer):
    """Effect: break off what was asked of `peer`; nothing is to be said of it any more."""


Effect = Ask | Leave


@dataclass(kw_only=True, slots=True)
class _Asked:
    """One that was asked. It keeps up until `late_at`."""

    began_at: float
    late_at: float
    piece_by: float
    size_bytes: int = 0
    carries: bool = False

    def rate(self, now: float) -> float:
        return self.size_bytes / max(now - self.began_at, 1e-3)


@dataclass(kw_only=True)
class ManifestInquiry:
    """See the module's paragraph. `piece_bytes` is what a piece of a manifest has."""

    piece_bytes: int = MANIFEST_PIECE_BYTES
    _asked: dict[PeerId, _Asked] = field(default_factory=dict)
    _known: set[PeerId] = field(default_factory=set)

    @property
    def next_at(self) -> float:
        """When to say Tick, if nothing happens before: when the last that keeps up will not. -infinity: none does."""
        return max((asked.late_at for asked in self._asked.values()), default=-math.inf)

    @property
    def waiting(self) -> bool:
        """Whether anybody may still answer."""
        return bool(self._asked)

    def late(self, now: float) -> list[PeerId]:
        """Those of whom an answer is still due, and who do not keep up."""
        return [peer for peer, asked in self._asked.items() if asked.late_at <= now]

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event at time `now` (seconds, monotonic) and return what to do, in this order."""
        match event:
            case Tick(present=present):
                return self._ask(present, now)
            case Ended(peer=peer):
                self._asked.pop(peer, None)
            case Heard(peer=peer) | PieceCame(peer=peer) | WholeCame(peer=peer):
                if (asked := self._asked.get(peer)) is not None:
                    return self._progress(asked, event, now)
        return []

    def _progress(self, asked: _Asked, event: Heard | PieceCame | WholeCame, now: float) -> list[Effect]:
        match event:
            case Heard(size_bytes=size_bytes):
                if size_bytes > asked.size_bytes:
                    asked.size_bytes = size_bytes
                    asked.late_at = min(now + MANIFEST_PATIENCE_S, asked.piece_by)
            case PieceCame():
                asked.carries = True
                asked.piece_by = now + self._piece_s
                asked.late_at = now + MANIFEST_PATIENCE_S
                return self._leave_slowest(now)
            case WholeCame():
                asked.late_at = math.inf
        return []

    @property
    def _piece_s(self) -> float:
        return MANIFEST_PATIENCE_S + self.piece_bytes / MANIFEST_RATE

    def _ask(self, present: Sequence[PeerId], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for peer in present:
            if self.next_at > now:
                break
            if peer not in self._known:
                self._known.add(peer)
                self._asked[peer] = _Asked(
                    began_at=now, late_at=now + MANIFEST_PATIENCE_S, piece_by=now + self._piece_s
                )
                effects.append(Ask(peer=peer))
        return effects

    def _leave_slowest(self, now: float) -> list[Effect]:
        carriers = {peer: asked for peer, asked in self._asked.items() if asked.carries}
        if len(carriers) <= MAX_CARRIERS:
            return []
        slowest = min(carriers, key=lambda peer: (carriers[peer].late_at == math.inf, carriers[peer].rate(now)))
        del self._asked[slowest]
        return [Leave(peer=slowest)]
