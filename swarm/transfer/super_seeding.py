"""Decide to which peer the source gives each chunk first: once, to the peer expected to relay it soonest.

    fresh --offer--> given to one peer --another peer announces it--> replicated
      ^                 |
      +-- the peer left, or did not ask for it

A pure core, used by the node that everybody else is waiting for. An offer is not a message of its own. The source's
HAVE and GAINED to a follower show the chunk that it was offered. So this is the rarest chunk that the follower knows,
and it asks for it at once.

The chosen peer has the least (chunks given to it and not yet relayed + 1) x lag. The lag is how long it usually takes
from sending a chunk to it until another peer announces it. That measures uplink, downlink, processor and honesty in one
figure, without a speed test. Offers are made `ahead` of the uplink, so that it never waits for a round trip. When no
peer has credit left, the uplink has capacity to spare, and gives second copies of the chunks that have waited longest.

Invariants:

- A chunk is offered to one peer only, until that peer was seen to have relayed it, or the uplink has nothing better to
  do.
- A peer has at most its credit of chunks that it was given and no other peer has announced. So a peer that never relays
  anything gets no more offers.
- A chunk whose every holder has left is given again.
- Everything is shown to everybody (`opened`) once every chunk was given, or was offered and the uplink waits for the
  peers to take it. From then on the peer that holds least is served first: it may reach few others. (Eight peers behind
  routers of all kinds were done at 1.22 of the bound in the simulation instead of 1.26.)
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from math import ceil

from protocol.core.ids import PeerId
from swarm.transfer.audience import Asked, Begun, Followed, Idle, Note, Sent, Unfollowed
from swarm.transfer.chunk_picker import OfChunk, OfPeer, PeerGained, PeerGone, PeerHas, Tick

CREDIT = 6
"""Chunks of one peer that no other peer has announced. They are lost if it dies, so it has no more than keep it busy
for a round trip."""

MAX_CREDIT = 20
"""The same when round trips are long: more would hide that the relaying peers cannot keep up."""

AHEAD = 12
"""Chunks offered and not yet sent, over all peers: three lanes, and three times as many that are about to be requested.
With fewer the uplink paused now and then between unequal peers."""

MAX_AHEAD = 32
"""The same when the uplink was seen to wait: 4 MiB of 128 KiB chunks cover 300 ms at 100 Mbit/s."""

UNASKED = 5
"""Offers that a peer has not asked for yet: on their way, or more than its window takes."""

MAX_TARGETS = 16
"""Followers that are offered chunks: enough uplinks to multiply all that ours can give, few enough to listen to."""

FIRST_LAG_S = 0.05
"""Seconds assumed for a peer that was given nothing yet: less than any peer achieves, so that each is tried."""

SMOOTHING = 0.3
"""Weight of the newest lag in its moving average: an uplink that collapses is noticed after three chunks."""

OFFER_TIMEOUT_S = 2.0
"""Seconds after which an offer that was not asked for is withdrawn: the peer has the chunk, or does not want it."""

SHOWN_AFTER_S, SHOWN_AFTER_LAGS = 10.0, 5.0
"""A chunk that was given so many seconds ago, or so many of the targets' usual lags, is shown to every follower.
Followers that it has not reached by then have no better way to it. If it is shown sooner in a large swarm, followers
that it is about to reach come to the source for it. With a thousand peers that fetched chunks of 1 MiB, these took a
tenth of the source's uplink."""

SHOWN_PER_S = 100
"""Followers told of such chunks in a second at most, by one message each: every ten seconds to a thousand. With ten
messages a second to each, these took an eighth of the bytes of a version of 102 MiB."""

MAX_KEPT_LOOKED_AT = 256
"""Kept chunks, the oldest, that are considered when a second copy is given. A peer that is alone and keeps all of a
large model would otherwise make each chunk cost as much as all before it."""

Event = PeerHas | PeerGained | PeerGone | Note | Tick


class Offer(OfChunk):
    """Effect: show `peer` that we hold `chunk`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Show:
    """Effect: show these chunks to every follower, also to later ones."""

    chunks: tuple[int, ...]


class Listen(OfPeer):
    """Effect: `peer` is a target; hear from now on what it holds."""


Effect = Offer | Show | Listen


@dataclass(kw_only=True, slots=True, eq=False)
class _Relay:
    """One target. `offered`: chunks offered and not sent. `kept`: chunks sent that no other peer has announced."""

    peer: PeerId
    holds: set[int] = field(default_factory=set)
    offered: dict[int, float] = field(default_factory=dict)
    asked: set[int] = field(default_factory=set)
    kept: dict[int, float] = field(default_factory=dict)
    lag: float = FIRST_LAG_S
    known: bool = False
    paused_until: float = 0.0

    def cost(self, now: float) -> float:
        """Return in how many seconds another peer is expected to announce a chunk given now.

        A chunk that is kept long counts before it is relayed, so that a collapsed uplink is noticed at once.
        """
        kept_s = now - next(iter(self.kept.values())) if self.kept else 0.0
        return (len(self.offered) + len(self.kept) + 1) * max(self.lag, kept_s)

    def note_lag(self, lag: float) -> None:
        """Note that another peer has announced a chunk `lag` seconds after we had sent it to this one."""
        self.lag = lag if not self.known else self.lag + SMOOTHING * (lag - self.lag)
        self.known = True


class SuperSeeder:
    """Decide which chunk to offer to which follower.

    Args:
        chunks: the chunks to give away, in this order. Other chunks are shown to everybody from the start.
        rng: chooses among equals, and the targets among many followers.
    """

    def __init__(self, chunks: Iterable[int], rng: random.Random) -> None:
        self._fresh = deque(dict.fromkeys(chunks))
        self._all = frozenset(self._fresh)
        self._rng = rng
        self._followers: dict[PeerId, None] = {}
        self._relays: dict[PeerId, _Relay] = {}
        self._holders: dict[int, int] = dict.fromkeys(self._fresh, 0)
        self._giver: dict[int, PeerId] = {}
        self._seconds: dict[int, PeerId] = {}
        self._shown: set[int] = set()
        self._given: deque[tuple[float, int]] = deque()
        self._shows_at = 0.0
        self._ahead, self._spare = AHEAD, 0
        self._sent_at: deque[float] = deque(maxlen=16)
        self.opened = not self._fresh

    @property
    def targets(self) -> Collection[PeerId]:
        """The followers that are offered chunks, and that must tell us what they hold."""
        return self._relays.keys()

    def num_holders(self, chunk: int) -> int:
        """Return how many targets are known to hold `chunk`."""
        return self._holders.get(chunk, 0)

    def num_held(self, peer: PeerId) -> int:
        """Return how many of the chunks `peer` is known to hold.

        Return 0 for all peers if not every follower is a target, so that they count as equal.
        """
        relay = self._relays.get(peer)
        return 0 if relay is None or len(self._relays) < len(self._followers) else len(relay.holds)

    def is_promised(self, peer: PeerId, chunk: int) -> bool:
        """Return whether `chunk` was offered to `peer` and has not been sent yet."""
        relay = self._relays.get(peer)
        return relay is not None and chunk in relay.offered

    def shows(self, chunk: int) -> bool:
        """Return whether everybody may know that we hold `chunk`."""
        return self.opened or chunk in self._shown or chunk not in self._all

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle one event at time `now` (seconds, monotonic); return the effects in order."""
        effects: list[Effect] = []
        match event:
            case PeerGained(peer=peer, chunks=chunks):
                if (relay := self._relays.get(peer)) is not None:
                    self._gain(relay, chunks, now)
            case Sent(peer=peer, chunk=chunk):
                self._sent(peer, chunk, now)
            case Asked(peer=peer, chunk=chunk):
                if (relay := self._relays.get(peer)) is not None and chunk in relay.offered:
                    relay.asked.add(chunk)
            case Followed(peer=peer):
                self._followers[peer] = None
                effects += self._choose_targets()
            case PeerHas(peer=peer, chunks=chunks):
                if (relay := self._relays.get(peer)) is not None:
                    self._lose(relay, relay.holds - chunks)
                    self._gain(relay, chunks - relay.holds, now)
            case Unfollowed(peer=peer):
                self._followers.pop(peer, None)
                self._remove(peer)
                effects += self._choose_targets()
            case PeerGone(peer=peer):
                self._remove(peer)
                effects += self._choose_targets()
            case Begun():
                pass
            case Idle():
                if any(relay.offered for relay in self._relays.values()):
                    self._ahead = min(self._ahead + 1, MAX_AHEAD)
                self._spare = min(self._spare + 1, MAX_AHEAD)
                if not self._fresh and not self.opened:
                    effects += self._open()
            case Tick():
                self._withdraw(now)
                effects += self._show_old(now)
        return effects + self._offer(now)

    # Who is here.

    def _choose_targets(self) -> list[Effect]:
        chosen: list[Effect] = []
        while len(self._relays) < MAX_TARGETS and len(self._relays) < len(self._followers):
            peer = self._rng.choice([peer for peer in self._followers if peer not in self._relays])
            self._relays[peer] = _Relay(peer=peer)
            chosen.append(Listen(peer=peer))
        return chosen

    def _remove(self, peer: PeerId) -> None:
        if (relay := self._relays.pop(peer, None)) is not None:
            self._lose(relay, relay.holds)
            for chunk in [*relay.kept, *relay.offered]:
                self._giver.pop(chunk, None)
                self._seconds.pop(chunk, None)
                self._give_again(chunk)

    # Who holds what.

    def _gain(self, relay: _Relay, chunks: Iterable[int], now: float) -> None:
        for chunk in chunks:
            if chunk not in self._holders or chunk in relay.holds:
                continue
            self._hold(relay, chunk)
            giver = self._giver.get(chunk)
            if relay.offered.pop(chunk, None) is not None:  # it came from another peer, before we had sent it
                relay.asked.discard(chunk)
                if giver == relay.peer:
                    del self._giver[chunk]
            elif giver is not None and giver != relay.peer:
                self._replicated(chunk, now)

    def _hold(self, relay: _Relay, chunk: int) -> None:
        if chunk not in relay.holds:
            relay.holds.add(chunk)
            self._holders[chunk] += 1

    def _replicated(self, chunk: int, now: float) -> None:
        """Free the credit for `chunk`: a peer other than the one that was given it holds it, or may ask for it.

        If the holder has lost it meanwhile (a node that restarted with an empty store), the chunk is given again.
        """
        first = self._relays[self._giver.pop(chunk)]
        sent_at = first.kept.pop(chunk, None)
        if sent_at is not None and chunk not in self._seconds:
            first.note_lag(now - sent_at)
        if sent_at is None and chunk not in first.asked:
            first.offered.pop(chunk, None)
        self._seconds.pop(chunk, None)
        self._give_again(chunk)

    def _lose(self, relay: _Relay, chunks: Iterable[int]) -> None:
        for chunk in list(chunks):
            relay.holds.discard(chunk)
            self._holders[chunk] -= 1
            self._give_again(chunk)

    def _give_again(self, chunk: int) -> None:
        """Give a chunk again, before all others, if no peer holds it or is being given it."""
        if not self._holders[chunk] and chunk not in self._giver:
            self._fresh.appendleft(chunk)

    # Giving.

    def _sent(self, peer: PeerId, chunk: int, now: float) -> None:
        """Note that `peer` holds `chunk` now; it will say so in a moment."""
        relay = self._relays.get(peer)
        if relay is None or chunk not in self._holders:
            return
        relay.offered.pop(chunk, None)
        relay.asked.discard(chunk)
        self._sent_at.append(now)
        self._given.append((now, chunk))
        self._hold(relay, chunk)
        giver = self._giver.get(chunk)
        if giver == peer:
            relay.kept[chunk] = now
        elif giver is not None:
            self._replicated(chunk, now)

    def _withdraw(self, now: float) -> None:
        """Take back offers that their peers did not ask for: they have the chunk already, or do not want it."""
        for relay in self._relays.values():
            if not relay.asked:
                for chunk, since in list(relay.offered.items()):
                    if now - since > OFFER_TIMEOUT_S:
                        relay.paused_until = now + OFFER_TIMEOUT_S
                        self._take_back(relay, chunk, now)

    def _take_back(self, relay: _Relay, chunk: int, now: float) -> None:
        del relay.offered[chunk]
        if self._giver.get(chunk) == relay.peer:
            del self._giver[chunk]
            self._seconds.pop(chunk, None)
            self._give_again(chunk)
        elif self._seconds.get(chunk) == relay.peer:
            self._replicated(chunk, now)

    def _show_old(self, now: float) -> list[Effect]:
        """Show chunks that were given long ago. They no longer count against the credit of the peers that got them."""
        old: list[int] = []
        if now < self._shows_at:
            return []
        after_s = self._shown_after_s()
        while self._given and now - self._given[0][0] > after_s:
            chunk = self._given.popleft()[1]
            if chunk not in self._shown:
                self._shown.add(chunk)
                old.append(chunk)
                if chunk in self._giver:
                    self._replicated(chunk, now)
        if not old or self.opened:
            return []
        self._shows_at = now + len(self._followers) / SHOWN_PER_S
        return [Show(chunks=tuple(old))]

    def _shown_after_s(self) -> float:
        """Return after how many seconds given chunks are shown, by the median lag.

        One slow target says nothing about how far chunks have come.
        """
        lags = sorted(relay.lag for relay in self._relays.values() if relay.known)
        return max(SHOWN_AFTER_S, SHOWN_AFTER_LAGS * lags[len(lags) // 2]) if lags else SHOWN_AFTER_S

    def _offer(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.opened or not self._relays:
            return effects
        in_hand = sum(len(relay.offered) for relay in self._relays.values())
        while in_hand < self._ahead and (offer := self._next(now, in_hand)) is not None:
            effects.append(offer)
            in_hand += 1
        if not self._fresh and not self._is_giving(now):
            effects += self._open()
        return effects

    def _open(self) -> list[Effect]:
        self.opened = True
        self._given.clear()
        return [Show(chunks=tuple(sorted(self._all - self._shown)))]

    def _is_giving(self, now: float) -> bool:
        """Return whether an offer is still on its way out. A peer that takes too long over one holds up nobody else."""
        return any(now - since < OFFER_TIMEOUT_S for relay in self._relays.values() for since in relay.offered.values())

    def _next(self, now: float, in_hand: int) -> Offer | None:
        """Return a fresh chunk for the best target; if the uplink has capacity to spare, a second copy, or a fresh
        chunk beyond credit.
        """
        while self._fresh and (self._holders[self._fresh[0]] or self._fresh[0] in self._giver):
            self._fresh.popleft()  # another peer brought it, or it is being given
        if not self._fresh:
            return None
        ready = [
            relay
            for relay in self._relays.values()
            if relay.paused_until <= now and len(relay.offered) - len(relay.asked) < UNASKED
        ]
        credit = self._credit()
        willing = [relay for relay in ready if len(relay.kept) < credit]
        if willing:
            self._spare = max(0, self._spare - 1)
            return self._give(min(willing, key=lambda relay: relay.cost(now)), now)
        if not ready or in_hand >= self._spare:
            return None
        if (second := self._second(ready, now)) is not None:
            return second
        return self._give(min(ready, key=lambda relay: (len(relay.offered), relay.cost(now))), now)

    def _give(self, relay: _Relay, now: float) -> Offer:
        chunk = self._fresh.popleft()
        relay.offered[chunk] = now
        self._giver[chunk] = relay.peer
        return Offer(peer=relay.peer, chunk=chunk)

    def _second(self, ready: list[_Relay], now: float) -> Offer | None:
        """Return a second copy of the chunk kept longest, for the target with the least in hand that lacks it."""
        others = [relay for relay in self._relays.values() if len(ready) > 1 or relay is not ready[0]]
        for _, chunk, first in islice(merge(*map(_oldest, others)), MAX_KEPT_LOOKED_AT):
            lacking = [
                relay
                for relay in ready
                if relay.peer != first and chunk not in relay.holds and chunk not in relay.offered
            ]
            if lacking and chunk not in self._seconds:
                relay = min(lacking, key=lambda relay: (len(relay.offered), relay.cost(now)))
                relay.offered[chunk] = now
                self._seconds[chunk] = relay.peer
                return Offer(peer=relay.peer, chunk=chunk)
        return None

    def _credit(self) -> int:
        """Return more than CREDIT only if, at our pace, even the quickest target's usual lag needs more."""
        lags = [relay.lag for relay in self._relays.values() if relay.known]
        if len(self._sent_at) < 2 or not lags:
            return CREDIT
        pace = (len(self._sent_at) - 1) / max(self._sent_at[-1] - self._sent_at[0], 1e-6)
        return min(max(CREDIT, ceil(2 * pace * min(lags) / len(self._relays)) + 1), MAX_CREDIT)


def _oldest(relay: _Relay) -> Iterator[tuple[float, int, PeerId]]:
    """Yield the kept chunks by when they were sent, ascending."""
    return ((since, chunk, relay.peer) for chunk, since in relay.kept.items())
