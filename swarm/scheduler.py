"""Which chunk to ask from whom: rarest first, bounded windows, one fetch of one version.

A pure core. What always holds: a chunk is asked of at most one peer at a time; a peer has at most `window` requests
outstanding and is only asked for what it said it holds; a chunk that was refused or failed is free at once to be
asked elsewhere, and of the same peer after a pause; a peer that breaks its word `MAX_FAILURES` times is ignored for
the rest of this fetch, one that sends wrong bytes at once. While nothing is outstanding and nobody holds what is
missing, the plan is starved, and says so. Ties between equally rare chunks are broken at random, so that peers that
start together fetch different chunks and then exchange them.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from protocol.ids import PeerId

WINDOW = 3
"""Requests outstanding at one peer: covers a round trip of 30 ms at 100 Mbit/s with 128 KiB chunks."""

MAX_FAILURES = 3
"""Broken promises (time-outs, missing after HAVE, broken streams) before a peer is ignored for this fetch."""

FAILURE_PAUSE_S = 2.0
"""Before a peer that broke its word is asked again: others that hold the chunk are asked first."""


@dataclass(frozen=True, kw_only=True)
class PeerHas:
    """`peer` holds exactly `chunks` (indices)."""

    peer: PeerId
    chunks: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class PeerGained:
    """`peer` now holds `chunks` as well."""

    peer: PeerId
    chunks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class PeerGone:
    """`peer` cannot be asked any more; what was asked of it is free again."""

    peer: PeerId


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """`chunk` came from `peer`, was verified and stored."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True, kw_only=True)
class Refused:
    """`peer` answered busy: not before `retry_at` (seconds, the caller's clock)."""

    peer: PeerId
    chunk: int
    retry_at: float


@dataclass(frozen=True, kw_only=True)
class Failed:
    """`peer` did not deliver: timed out, or the stream broke."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True, kw_only=True)
class Missing:
    """`peer` does not hold `chunk` after all."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True, kw_only=True)
class Corrupt:
    """`peer` sent bytes that are not the chunk."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True, kw_only=True)
class Tick:
    """Time has passed; those who were busy may be asked again."""


Event = PeerHas | PeerGained | PeerGone | Arrived | Refused | Failed | Missing | Corrupt | Tick


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Effect: request `chunk` from `peer`."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True, kw_only=True)
class Ignore:
    """Effect: `peer` is not asked again in this fetch, and what was asked of it is free: cancel it."""

    peer: PeerId
    corrupt: bool


@dataclass(frozen=True, kw_only=True)
class Complete:
    """Effect: nothing is missing any more."""


Effect = Ask | Ignore | Complete


@dataclass(kw_only=True)
class _Neighbour:
    holds: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    busy_until: float = 0.0


class FetchPlan:
    """See the module's paragraph.

    Args:
        missing: indices of the chunks still to fetch.
        rng: breaks ties; injected so that a simulation repeats.
        window: requests outstanding at one peer.
    """

    def __init__(self, missing: Iterable[int], rng: random.Random, window: int = WINDOW) -> None:
        self._missing = set(missing)
        self._window = window
        self._neighbours: dict[PeerId, _Neighbour] = {}
        self._failures: Counter[PeerId] = Counter()  # outlives a peer's leaving, or leaving would clear its name
        self._ignored: set[PeerId] = set()
        self._in_flight: set[int] = set()
        self._holders = dict.fromkeys(self._missing, 0)
        self._lot = {chunk: rng.random() for chunk in sorted(self._missing)}
        self._finished = False

    @property
    def missing(self) -> frozenset[int]:
        """Chunks that have not arrived."""
        return frozenset(self._missing)

    @property
    def starved(self) -> bool:
        """Whether chunks are missing that nobody here holds, and nothing else is left to do."""
        return bool(self._missing) and not self._in_flight and not any(self._holders[c] for c in self._missing)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event at time `now` (seconds, monotonic) and return what to do, in this order."""
        return self._take(event, now) + self._ask(now)

    def _take(self, event: Event, now: float) -> list[Effect]:
        match event:
            case PeerHas(peer=peer, chunks=chunks):
                if peer not in self._ignored:
                    self._set_holdings(self._neighbours.setdefault(peer, _Neighbour()), set(chunks))
            case PeerGained(peer=peer, chunks=gained):
                if (neighbour := self._neighbours.get(peer)) is not None:
                    self._set_holdings(neighbour, neighbour.holds | set(gained))
            case PeerGone(peer=peer):
                self._drop(peer)
            case Arrived(peer=peer, chunk=chunk):
                self._settle(peer, chunk)
                self._missing.discard(chunk)
            case Refused(peer=peer, chunk=chunk, retry_at=retry_at):
                self._settle(peer, chunk)
                self._pause(peer, retry_at)
            case Failed(peer=peer, chunk=chunk) if self._settle(peer, chunk):
                self._pause(peer, now + FAILURE_PAUSE_S)
                return self._blame(peer)
            case Missing(peer=peer, chunk=chunk) if self._settle(peer, chunk):
                neighbour = self._neighbours[peer]
                self._set_holdings(neighbour, neighbour.holds - {chunk})
                return self._blame(peer)
            case Corrupt(peer=peer, chunk=chunk) if self._settle(peer, chunk):
                return self._ignore(peer, corrupt=True)
            case _:
                pass
        return []

    def _blame(self, peer: PeerId) -> list[Effect]:
        self._failures[peer] += 1
        return self._ignore(peer, corrupt=False) if self._failures[peer] >= MAX_FAILURES else []

    def _ignore(self, peer: PeerId, *, corrupt: bool) -> list[Effect]:
        self._drop(peer)
        self._ignored.add(peer)
        return [Ignore(peer=peer, corrupt=corrupt)]

    def _settle(self, peer: PeerId, chunk: int) -> bool:
        """Take a request off the books; False when it was not, or no longer, asked of this peer."""
        neighbour = self._neighbours.get(peer)
        if neighbour is None or chunk not in neighbour.asked:
            return False
        neighbour.asked.discard(chunk)
        self._in_flight.discard(chunk)
        return True

    def _pause(self, peer: PeerId, until: float) -> None:
        if (neighbour := self._neighbours.get(peer)) is not None:
            neighbour.busy_until = max(neighbour.busy_until, until)

    def _drop(self, peer: PeerId) -> None:
        neighbour = self._neighbours.pop(peer, None)
        if neighbour is not None:
            self._set_holdings(neighbour, set())
            self._in_flight -= neighbour.asked

    def _set_holdings(self, neighbour: _Neighbour, holds: set[int]) -> None:
        for chunk in neighbour.holds - holds:
            if chunk in self._holders:
                self._holders[chunk] -= 1
        for chunk in holds - neighbour.holds:
            if chunk in self._holders:
                self._holders[chunk] += 1
        neighbour.holds = holds

    def _ask(self, now: float) -> list[Effect]:
        if not self._missing:
            done: list[Effect] = [] if self._finished else [Complete()]
            self._finished = True
            return done
        asks: list[Effect] = []
        for peer in self._least_loaded(now):
            neighbour = self._neighbours[peer]
            wanted = (neighbour.holds & self._missing) - self._in_flight
            for chunk in heapq.nsmallest(self._window - len(neighbour.asked), wanted, key=self._rarity):
                neighbour.asked.add(chunk)
                self._in_flight.add(chunk)
                asks.append(Ask(peer=peer, chunk=chunk))
        return asks

    def _rarity(self, chunk: int) -> tuple[int, float]:
        return self._holders[chunk], self._lot[chunk]

    def _least_loaded(self, now: float) -> list[PeerId]:
        """Peers with room in their window; those who hold least first, so that the source is asked last."""
        free = [p for p, n in self._neighbours.items() if len(n.asked) < self._window and n.busy_until <= now]
        return sorted(free, key=lambda peer: len(self._neighbours[peer].holds))
