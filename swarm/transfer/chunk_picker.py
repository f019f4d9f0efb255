"""Decide which chunk to request from which peer: rarest first, in bounded windows, for one fetch of one set of chunks.

    free --ask--> asked --arrived--> held
      ^            |  \\--overdue, or endgame: recall--> recalled --arrived--> held
      |            |                                       |  \\--ask a second--> asked of two --arrived--> held
      +------------+--refused, missing, corrupt; broke-----+-- returned
                      silent too long, peer gone

A pure core. Ties between equally rare chunks are broken at random, so that peers that start together fetch different
chunks and then exchange them.

The cost of an event depends only on the peer that it is about. Each neighbour keeps its chunks in a heap by rarity. A
chunk that has become less rare is moved when it comes up, and one that is no longer wanted is dropped. Only a peer's
departure costs as much as it held, and `Tick` as much as is outstanding.

Invariants:

- A peer is only asked for chunks that it said it holds, and has at most its window of requests outstanding.
- A chunk is requested from one peer at a time. A second peer is asked only when the first is overdue and did not even
  answer a recall. The peer that loses then gets a Cancel.
- A chunk that was refused or failed is free at once to be requested elsewhere, and from the same peer after a pause.
- A peer that breaks `MAX_FAILURES` more promises than it makes up for is ignored for the rest of this fetch. One that
  sends wrong bytes is ignored at once.
- While nothing is outstanding and no neighbour holds the missing chunks, the plan is starved, and says so.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from math import ceil, inf

from protocol.core.ids import PeerId
from protocol.core.limits import MAX_CHUNKS

WINDOW = 3
"""Requests outstanding at one peer until its rate is known."""

MIN_WINDOW, MAX_WINDOW = 2, 8
"""Requests. The least is one on its way while another is being sent. Eight of 128 KiB cover 30 ms at 280 Mbit/s from
one peer alone."""

HORIZON_S = 1.0
"""Seconds. The window is what a peer sends us in this time, and one more: several times the round trip over full links,
with the queues of their routers (0.1 to 0.3 s). A peer that cannot keep up says BUSY, which narrows the window."""

MAX_FAILURES = 3
"""Broken promises (timeouts, Missing after HAVE, broken streams) before a peer is ignored for this fetch."""

FAILURE_PAUSE_S = 2.0
"""Seconds before a peer that broke a promise is asked again: other holders of the chunk are asked first."""

TIMEOUT_S, TIMEOUT_LATENCIES = 3.0, 4.0
"""A peer that owes us chunks is given up after so many seconds without a byte, or after so many of its usual latencies
if that is longer."""

OVERDUE_S = 1.0
"""Seconds beyond a peer's usual latency before its chunk is recalled, and again before a second peer is asked as well.
With less, one chunk in twenty-five came twice."""

ENDGAME_GAIN_S = 0.1
"""Seconds. In the endgame a chunk is recalled if another peer would send it so much sooner. A Cancel takes less."""

ENDGAME_S = 0.3
"""Seconds. In the endgame, a recalled chunk that has not come by then is requested from a second peer as well. A round
trip over full links is over, so the chunk is being sent slowly, or its sender is gone."""

MAX_SECOND_ASKS = 4
"""Chunks requested from two peers at once; each may cost its bytes twice."""

FIRST_LATENCY_S = 0.3
"""Seconds assumed for a peer that was never asked: a round trip over full links, with the queues of their routers."""

SMOOTHING = 0.2
"""Weight of the newest latency or interval in its moving average: five chunks are remembered."""

_RANKS = 1 << MAX_CHUNKS.bit_length()


@dataclass(frozen=True, kw_only=True, slots=True)
class OfPeer:
    """Base of events and effects that name only their peer."""

    peer: PeerId


@dataclass(frozen=True, kw_only=True, slots=True)
class OfChunk:
    """Base of events and effects about one chunk (its index) between a peer and us."""

    peer: PeerId
    chunk: int


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerHas:
    """`peer` holds exactly `chunks` (indices)."""

    peer: PeerId
    chunks: frozenset[int]


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerGained:
    """`peer` now holds `chunks` as well."""

    peer: PeerId
    chunks: tuple[int, ...]


class PeerGone(OfPeer):
    """`peer` cannot be asked any more; its requests are free again."""


class Arrived(OfChunk):
    """`chunk` came from `peer`, was verified and stored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """`peer` answered BUSY: ask again at `retry_at` (seconds, the caller's clock) at the earliest."""

    peer: PeerId
    chunk: int
    retry_at: float


class Returned(OfChunk):
    """`peer` returned the request for `chunk` that we recalled: it had not begun to send it."""


class Broke(OfPeer):
    """The stream with the chunks of `peer` broke: none of its requests will be answered."""


class Missing(OfChunk):
    """`peer` does not hold `chunk` after all."""


class Corrupt(OfChunk):
    """`peer` sent bytes that are not the chunk."""


class Heard(OfPeer):
    """Bytes came from `peer`, perhaps only a part of a chunk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """Time has passed: peers that were busy may be asked again, and silent ones are given up."""


Event = PeerHas | PeerGained | PeerGone | Arrived | Refused | Returned | Broke | Missing | Corrupt | Heard | Tick


class Ask(OfChunk):
    """Effect: request `chunk` from `peer`."""


class Cancel(OfChunk):
    """Effect: cancel the open request for `chunk` to `peer`. If the chunk comes all the same, it is taken."""


class Recall(OfChunk):
    """Effect: ask `peer` to return `chunk` if it has not begun to send it. It answers Returned, or Arrived."""


class GiveUp(OfPeer):
    """Effect: `peer` has been silent too long, and its requests are free. Break off the stream with its chunks."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignore:
    """Effect: `peer` is not asked again in this fetch, and its requests are free. Break off its stream."""

    peer: PeerId
    corrupt: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Complete:
    """Effect: nothing is missing any more."""


Effect = Ask | Cancel | Recall | GiveUp | Ignore | Complete


@dataclass(kw_only=True, slots=True, eq=False)
class _Neighbour:
    """The state of one peer.

    `queue` is a heap of (holders, rank) keys, at least one for each chunk that could be requested from it. `asked` maps
    each outstanding chunk to the time of its request. `heard_at` is when bytes of chunks last came, or were first due.
    `told_at` is when it last said what it holds.
    """

    peer: PeerId
    holds: bytearray
    window: int
    num_held: int = 0
    queue: list[int] = field(default_factory=list)
    asked: dict[int, float] = field(default_factory=dict)
    recalled: dict[int, float] = field(default_factory=dict)
    busy_until: float = 0.0
    heard_at: float = 0.0
    told_at: float = 0.0
    arrived_at: float = -inf
    latency: float = FIRST_LATENCY_S
    interval: float = inf

    def note_arrival(self, asked_at: float, now: float, max_window: int) -> None:
        """Learn from one chunk that came: how long it took, and how far apart chunks come while several are due."""
        took = now - asked_at
        self.latency = took if self.arrived_at == -inf else self.latency + SMOOTHING * (took - self.latency)
        if asked_at < self.arrived_at:
            apart = now - self.arrived_at
            self.interval = apart if self.interval == inf else self.interval + SMOOTHING * (apart - self.interval)
        self.arrived_at = now
        if self.interval < inf:
            wanted = 1 + ceil(HORIZON_S / max(self.interval, 1e-4))
            self.window = min(max(wanted, MIN_WINDOW), max_window)


class ChunkPicker:
    """Plan the requests of one fetch.

    Args:
        missing: indices of the chunks still to fetch.
        rng: breaks ties. It is injected so that a simulation can be repeated.
        window: requests outstanding at one peer at first. Once its rate is known, `max_window` is the most.
    """

    def __init__(
        self, missing: Iterable[int], rng: random.Random, window: int = WINDOW, max_window: int = MAX_WINDOW
    ) -> None:
        self._missing = set(missing)
        self._window, self._max_window = window, max_window
        self._by_rank = sorted(self._missing)
        rng.shuffle(self._by_rank)
        self._size = max(self._missing, default=-1) + 1
        self._rank = [0] * self._size
        for rank, chunk in enumerate(self._by_rank):
            self._rank[chunk] = rank
        self._holders = [0] * self._size
        self._neighbours: dict[PeerId, _Neighbour] = {}
        self._failures: Counter[PeerId] = Counter()  # kept when a peer leaves, or leaving would clear its name
        self._ignored: set[PeerId] = set()
        self._asked: dict[int, list[PeerId]] = {}
        self._num_known = 0
        self._eager: list[_Neighbour] = []
        self._finished = False

    @property
    def missing(self) -> frozenset[int]:
        """The chunks that have not arrived."""
        return frozenset(self._missing)

    @property
    def num_missing(self) -> int:
        """The number of chunks that have not arrived."""
        return len(self._missing)

    def lacks(self, chunk: int) -> bool:
        """Return whether `chunk` is to be fetched, and has not arrived."""
        return chunk in self._missing

    @property
    def starved(self) -> bool:
        """Whether chunks are missing that no neighbour holds, and nothing else is left to do."""
        return bool(self._missing) and not self._asked and not self._num_known

    @property
    def endgame(self) -> bool:
        """Whether every missing chunk has been requested from a peer."""
        return len(self._asked) == len(self._missing) > 0

    def num_holders(self, chunk: int) -> int:
        """Return how many neighbours are known to hold `chunk`; 0 for a chunk outside the plan."""
        return self._holders[chunk] if chunk < self._size else 0

    def num_held(self, peer: PeerId) -> int:
        """Return how many chunks `peer` is known to hold; 0 if it is no neighbour."""
        neighbour = self._neighbours.get(peer)
        return 0 if neighbour is None else neighbour.num_held

    def holds(self, peer: PeerId, chunk: int) -> bool:
        """Return whether `peer` is known to hold `chunk`."""
        neighbour = self._neighbours.get(peer)
        return neighbour is not None and chunk < self._size and bool(neighbour.holds[chunk])

    def news(self, peer: PeerId, chunks: Iterable[int]) -> tuple[int, ...]:
        """Return those of `chunks` that `peer` is not known to hold."""
        if (neighbour := self._neighbours.get(peer)) is None:
            return tuple(chunks)
        holds, size = neighbour.holds, self._size
        return tuple([chunk for chunk in chunks if chunk >= size or not holds[chunk]])

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle one event at time `now` (seconds, monotonic); return the effects in order."""
        effects = self._take(event, now)
        if not self._missing:
            if not self._finished:
                self._finished = True
                effects.append(Complete())
            return effects
        eager, self._eager = self._eager, []
        if len(eager) > 1:
            eager.sort(key=lambda neighbour: neighbour.num_held)
        for neighbour in eager:
            self._ask(neighbour, now, effects)
        return effects

    def _take(self, event: Event, now: float) -> list[Effect]:
        match event:
            case PeerGained(peer=peer, chunks=gained):
                if (neighbour := self._neighbours.get(peer)) is not None:
                    neighbour.told_at = now
                    self._gain(neighbour, gained)
                    self._eager.append(neighbour)
            case Arrived(peer=peer, chunk=chunk):
                return self._arrived(peer, chunk, now)
            case Tick():
                return self._tick(now)
            case Heard(peer=peer):
                if (neighbour := self._neighbours.get(peer)) is not None:
                    neighbour.heard_at = now
            case PeerHas(peer=peer, chunks=chunks):
                if peer not in self._ignored:
                    self._replace(peer, chunks, now)
            case PeerGone(peer=peer):
                self._drop(peer)
            case Refused(peer=peer, chunk=chunk, retry_at=retry_at):
                if (neighbour := self._settle(peer, chunk)) is not None:
                    neighbour.window = max(1, min(neighbour.window, len(neighbour.asked)))
                    neighbour.heard_at = now
                    neighbour.busy_until = max(neighbour.busy_until, retry_at)
            case Returned(peer=peer, chunk=chunk):
                self._settle(peer, chunk)
            case Broke(peer=peer):
                if (neighbour := self._neighbours.get(peer)) is not None and neighbour.asked:
                    return self._fail(neighbour, now)
            case Missing(peer=peer, chunk=chunk):
                if (neighbour := self._settle(peer, chunk)) is not None:
                    self._lose(neighbour, (chunk,))
                    self._eager.append(neighbour)
                    return self._blame(peer)
            case Corrupt(peer=peer, chunk=chunk):
                if self._settle(peer, chunk) is not None:
                    return self._ignore(peer, corrupt=True)
        return []

    # What peers hold.

    def _replace(self, peer: PeerId, chunks: frozenset[int], now: float) -> None:
        neighbour = self._neighbours.get(peer)
        if neighbour is None:
            neighbour = _Neighbour(peer=peer, holds=bytearray(self._size), window=self._window)
            self._neighbours[peer] = neighbour
        else:
            self._lose(neighbour, [chunk for chunk in _marked(neighbour.holds) if chunk not in chunks])
        neighbour.told_at = now
        self._gain(neighbour, chunks)
        self._eager.append(neighbour)

    def _gain(self, neighbour: _Neighbour, chunks: Iterable[int]) -> None:
        missing, holds, asked = self._missing, neighbour.holds, self._asked
        keys = []
        for chunk in chunks:
            if chunk < self._size and not holds[chunk]:
                holds[chunk] = 1
                neighbour.num_held += 1
                self._holders[chunk] += 1
                if chunk in missing:
                    self._num_known += self._holders[chunk] == 1
                    if chunk not in asked:
                        keys.append(self._key(chunk))
        if len(keys) > 8 and len(keys) > len(neighbour.queue) // 4:
            neighbour.queue += keys
            heapify(neighbour.queue)
        else:
            for key in keys:
                heappush(neighbour.queue, key)

    def _lose(self, neighbour: _Neighbour, chunks: Iterable[int]) -> None:
        for chunk in chunks:
            if neighbour.holds[chunk]:
                neighbour.holds[chunk] = 0
                neighbour.num_held -= 1
                self._holders[chunk] -= 1
                self._num_known -= not self._holders[chunk] and chunk in self._missing

    def _drop(self, peer: PeerId) -> None:
        if (neighbour := self._neighbours.get(peer)) is not None:
            for chunk in list(neighbour.asked):
                self._settle(peer, chunk)
            self._lose(neighbour, _marked(neighbour.holds))
            del self._neighbours[peer]
            self._eager = [one for one in self._eager if one is not neighbour]

    def _key(self, chunk: int) -> int:
        return self._holders[chunk] * _RANKS + self._rank[chunk]

    # Requests.

    def _arrived(self, peer: PeerId, chunk: int, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if (neighbour := self._neighbours.get(peer)) is not None:
            if (asked_at := neighbour.asked.get(chunk)) is not None:
                neighbour.note_arrival(asked_at, now, self._max_window)
                if self._failures[peer]:
                    self._failures[peer] -= 1
            neighbour.heard_at = now
            self._eager.append(neighbour)
        if chunk not in self._missing:
            self._settle(peer, chunk)
            return effects
        self._missing.discard(chunk)
        self._num_known -= bool(self._holders[chunk])
        for asked in self._asked.pop(chunk, ()):
            other = self._neighbours[asked]
            del other.asked[chunk]
            other.recalled.pop(chunk, None)
            if asked != peer:
                effects.append(Cancel(peer=asked, chunk=chunk))
                self._eager.append(other)
        return effects

    def _settle(self, peer: PeerId, chunk: int) -> _Neighbour | None:
        """Remove a request; return None if it was not, or no longer, outstanding at this peer.

        A chunk that is then requested from nobody is free, and may be requested from all that hold it.
        """
        neighbour = self._neighbours.get(peer)
        if neighbour is None or neighbour.asked.pop(chunk, None) is None:
            return None
        neighbour.recalled.pop(chunk, None)
        askers = self._asked[chunk]
        askers.remove(peer)
        if not askers:
            del self._asked[chunk]
            for other in self._neighbours.values():
                if other.holds[chunk]:
                    heappush(other.queue, self._key(chunk))
                    if other is not neighbour:
                        self._eager.append(other)
        return neighbour

    def _ask(self, neighbour: _Neighbour, now: float, effects: list[Effect]) -> None:
        """Request the rarest free chunks, up to the window; if none is free, help with those already requested."""
        room = neighbour.window - len(neighbour.asked)
        if room <= 0 or neighbour.busy_until > now:
            return
        queue = neighbour.queue
        while room and queue:
            key = queue[0]
            chunk = self._by_rank[key % _RANKS]
            if chunk not in self._missing or chunk in self._asked or not neighbour.holds[chunk]:
                heappop(queue)
            elif key < (current := self._key(chunk)):
                heapreplace(queue, current)
            else:
                heappop(queue)
                self._asked[chunk] = [neighbour.peer]
                self._begin(neighbour, chunk, now, effects)
                room -= 1
        if room and self.endgame:
            self._help(neighbour, now, effects)

    def _begin(self, neighbour: _Neighbour, chunk: int, now: float, effects: list[Effect]) -> None:
        if not neighbour.asked:
            neighbour.heard_at = max(neighbour.heard_at, now)  # the timeout counts from here
        neighbour.asked[chunk] = now
        effects.append(Ask(peer=neighbour.peer, chunk=chunk))

    def _help(self, neighbour: _Neighbour, now: float, effects: list[Effect]) -> None:
        """In the endgame, recall the chunk that would come latest, if it would come much sooner from this neighbour."""
        latest, worst = now + neighbour.latency + ENDGAME_GAIN_S, -1
        for chunk, askers in self._asked.items():
            first = self._neighbours[askers[0]]
            if neighbour.holds[chunk] and first is not neighbour and chunk not in first.recalled:
                due = self._due(first, chunk, now)
                if due > latest:
                    latest, worst = due, chunk
        if worst >= 0:
            self._recall(worst, self._neighbours[self._asked[worst][0]], now, effects)

    def _due(self, neighbour: _Neighbour, chunk: int, now: float) -> float:
        """Return when `chunk` is expected from `neighbour`; a late chunk is assumed to take as long again."""
        due = neighbour.asked[chunk] + neighbour.latency
        return due if due > now else now + (now - due)

    def _tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for neighbour in list(self._neighbours.values()):
            if neighbour.asked and now - neighbour.heard_at > max(TIMEOUT_S, TIMEOUT_LATENCIES * neighbour.latency):
                effects += [GiveUp(peer=neighbour.peer), *self._fail(neighbour, now)]
        with_room = [
            neighbour
            for neighbour in self._neighbours.values()
            if neighbour.busy_until <= now and len(neighbour.asked) < neighbour.window
        ]
        if self.endgame or any(neighbour.queue for neighbour in with_room):
            self._eager += with_room
        for chunk, askers in list(self._asked.items()):
            if len(askers) == 1:
                first = self._neighbours[askers[0]]
                if chunk in first.recalled or now - first.asked[chunk] > OVERDUE_S:
                    self._urge(chunk, first, now, effects)
        return effects

    def _urge(self, chunk: int, first: _Neighbour, now: float, effects: list[Effect]) -> None:
        """If `chunk` is overdue, recall it; if even that is not answered, ask a second holder as well."""
        if (recalled_at := first.recalled.get(chunk)) is not None:
            if now - recalled_at > (ENDGAME_S if self.endgame else OVERDUE_S + first.latency):
                self._ask_second(chunk, first, now, effects)
        elif now - first.asked[chunk] > OVERDUE_S + first.latency:
            self._recall(chunk, first, now, effects)

    def _fail(self, neighbour: _Neighbour, now: float) -> list[Effect]:
        """Free all requests of a neighbour that will not answer them: one broken promise, however many chunks."""
        for chunk in list(neighbour.asked):
            self._settle(neighbour.peer, chunk)
        neighbour.busy_until = max(neighbour.busy_until, now + FAILURE_PAUSE_S)
        neighbour.window = 1
        return self._blame(neighbour.peer)

    def _recall(self, chunk: int, first: _Neighbour, now: float, effects: list[Effect]) -> None:
        if self._others(chunk, first, now):
            first.recalled[chunk] = now
            effects.append(Recall(peer=first.peer, chunk=chunk))

    def _ask_second(self, chunk: int, first: _Neighbour, now: float, effects: list[Effect]) -> None:
        others = self._others(chunk, first, now)
        if others and sum(len(askers) > 1 for askers in self._asked.values()) < MAX_SECOND_ASKS:
            second = min(others, key=lambda other: self._slowness(other, now))
            self._asked[chunk].append(second.peer)
            self._begin(second, chunk, now, effects)

    def _slowness(self, other: _Neighbour, now: float) -> tuple[int, bool, int, float]:
        """Return a key; the least is likeliest to send soon.

        A peer that has vanished has no open requests, and would look freest of all. In one simulation a chunk was
        requested from three such peers, one after the other, and its fetcher was done 3 s after all others (of 300).
        """
        is_overdue = now - max(other.heard_at, other.told_at) > TIMEOUT_S
        return self._failures[other.peer], is_overdue, len(other.asked), other.latency

    def _others(self, chunk: int, first: _Neighbour, now: float) -> list[_Neighbour]:
        """Return the other peers that hold `chunk` and have room."""
        return [
            other
            for other in self._neighbours.values()
            if other.holds[chunk] and other is not first and len(other.asked) < other.window and other.busy_until <= now
        ]

    # Faults.

    def _blame(self, peer: PeerId) -> list[Effect]:
        self._failures[peer] += 1
        return self._ignore(peer, corrupt=False) if self._failures[peer] >= MAX_FAILURES else []

    def _ignore(self, peer: PeerId, *, corrupt: bool) -> list[Effect]:
        self._drop(peer)
        self._ignored.add(peer)
        return [Ignore(peer=peer, corrupt=corrupt)]


def _marked(flags: bytearray) -> list[int]:
    return [chunk for chunk, flag in enumerate(flags) if flag]
