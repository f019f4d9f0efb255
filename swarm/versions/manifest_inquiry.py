"""Decide which peer to ask for one manifest, when to ask another as well, and which one to stop asking.

    not asked --Ask--> asked --PieceCame--> carrying --WholeCame--> checked
                         +--Ended             +--Ended, Leave

A peer keeps up if it has sent something lately and does not take too long for a piece. So a hostile peer costs a second
if it is silent, and the time of one piece if it sends slowly. Meanwhile another peer is asked.

Invariants:

- The next peer is asked at the moment when none of the asked peers keeps up.
- A peer is asked once.
- At most MAX_CARRIERS peers are beyond their first piece. So memory is bounded by as many manifests, plus one piece of
  each other peer.
- If there are more, the slowest is stopped, so that faster peers can take its place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.core.ids import PeerId
from protocol.core.limits import MANIFEST_PIECE_BYTES
from swarm.transfer.chunk_picker import OfPeer

MANIFEST_TIMEOUT_S, MANIFEST_RATE = 1.0, 500_000
"""Seconds that a peer may be silent before the next is asked as well, and the rate in bytes per second that sets the
additional time for a piece. So a frozen peer costs a second, and a slow link does not carry one manifest twice."""

MAX_CARRIERS = 2
"""Peers that may send more than the first piece: one, and one that may be faster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heard:
    """`peer` has sent `size_bytes` so far, parts of pieces included."""

    peer: PeerId
    size_bytes: int


class PieceCame(OfPeer):
    """A piece from `peer` is complete, and `peer` is asked for another."""


class WholeCame(OfPeer):
    """The whole manifest from `peer` is here and is being checked."""


class Ended(OfPeer):
    """`peer` will send nothing more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """Time has passed, or a peer ended: decide whether to ask another. All Heard events must come before.

    `present` are the peers that may be asked, in order of preference.
    """

    present: Sequence[PeerId]


Event = Heard | PieceCame | WholeCame | Ended | Tick


class Ask(OfPeer):
    """Effect: ask `peer`."""


class Leave(OfPeer):
    """Effect: cancel the request to `peer`, and report no more events about it."""


Effect = Ask | Leave


@dataclass(kw_only=True, slots=True)
class _Asked:
    """A peer that was asked. It keeps up until `late_at`."""

    began_at: float
    late_at: float
    piece_by: float
    size_bytes: int = 0
    carries: bool = False

    def rate(self, now: float) -> float:
        return self.size_bytes / max(now - self.began_at, 1e-3)


@dataclass(kw_only=True)
class ManifestInquiry:
    """The search for one manifest among peers. `piece_bytes` is the size of a piece of a manifest."""

    piece_bytes: int = MANIFEST_PIECE_BYTES
    _asked: dict[PeerId, _Asked] = field(default_factory=dict)
    _known: set[PeerId] = field(default_factory=set)

    @property
    def next_at(self) -> float:
        """The time for the next Tick, if nothing happens before: when the last peer stops keeping up.

        It is -infinity if no peer keeps up.
        """
        return max((asked.late_at for asked in self._asked.values()), default=-math.inf)

    @property
    def waiting(self) -> bool:
        """Whether a peer may still answer."""
        return bool(self._asked)

    def late(self, now: float) -> list[PeerId]:
        """Return the peers whose answer is still due and that do not keep up."""
        return [peer for peer, asked in self._asked.items() if asked.late_at <= now]

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle one event at time `now` (seconds, monotonic). Return the effects, in order."""
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
                    asked.late_at = min(now + MANIFEST_TIMEOUT_S, asked.piece_by)
            case PieceCame():
                asked.carries = True
                asked.piece_by = now + self._piece_s
                asked.late_at = now + MANIFEST_TIMEOUT_S
                return self._leave_slowest(now)
            case WholeCame():
                asked.late_at = math.inf
        return []

    @property
    def _piece_s(self) -> float:
        return MANIFEST_TIMEOUT_S + self.piece_bytes / MANIFEST_RATE

    def _ask(self, present: Sequence[PeerId], now: float) -> list[Effect]:
        effects: list[Effect] = []
        for peer in present:
            if self.next_at > now:
                break
            if peer not in self._known:
                self._known.add(peer)
                self._asked[peer] = _Asked(began_at=now, late_at=now + MANIFEST_TIMEOUT_S, piece_by=now + self._piece_s)
                effects.append(Ask(peer=peer))
        return effects

    def _leave_slowest(self, now: float) -> list[Effect]:
        carriers = {peer: asked for peer, asked in self._asked.items() if asked.carries}
        if len(carriers) <= MAX_CARRIERS:
            return []
        slowest = min(carriers, key=lambda peer: (carriers[peer].late_at == math.inf, carriers[peer].rate(now)))
        del self._asked[slowest]
        return [Leave(peer=slowest)]
