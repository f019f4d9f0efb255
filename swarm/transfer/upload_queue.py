"""Whose request is answered next: few uploads at a time, what was promised first, what is rare, then who is behind.

    asked --begin--> sending --sent--> over
      |                 \\--stalled: goes on, but its lane is given to another
      +-- refused (queue full, or too long a wait), or withdrawn

A pure core. What always holds: at most `LANES` uploads that move are under way, fewer on a slow uplink, since more
would only divide it and delay first copies, and at most `MAX_UPLOADS` in all; at most one of them goes to the same
peer; at most `MAX_WAITING` requests wait, and of one peer `MAX_WAITING_PER_PEER`; without room, or if the wait would be
longer than `MAX_WAIT_S`, a request is refused at once rather than kept in a silent queue, unless it asks for what this
node offered, or its peer is so far behind that the least urgent of those waiting is refused instead; an upload that
does not move, or does not take its share while the uplink has some to spare, no longer holds a lane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.core.ids import Cid, PeerId

LANES = 3
"""Uploads at a time: one keeps the uplink busy, a second follows without a gap, a third makes up for a slow reader."""

LANE_S = 0.1
"""A lane beyond the first for each chunk that the uplink sends in so long: one that needs longer for a chunk has no gap
between two worth filling. Each lane delays the first copy that others could pass on, and keeps some 64 KiB standing in
the routers before us, behind which requests wait, and acknowledgements, without which nothing comes. At 50 Mbit/s and
128 KiB there are three, at 10 Mbit/s one: three there made the last of 250 unequal peers a tenth later (one seed), and
two the last of 8 on emulated links, 1.21 of the bound and not 1.15 (medians of three)."""

MAX_UPLOADS = 12
"""With those that have given up their lane: so many chunks are in memory, and slow readers served, at once."""

MAX_WAITING = 16
"""Requests waiting: a third of a second of 128 KiB chunks at 50 Mbit/s; beyond it BUSY sends the peer elsewhere."""

MAX_WAITING_PER_PEER = 8
"""A peer's largest window of requests."""

MAX_WAIT_S = 0.3
"""A request that would wait longer is better asked of another holder."""

BEHIND = 16
"""Without room, a request of who holds so many chunks fewer takes the place of the one that would be served last. Every
place taken costs a round trip, so equals do not: two windows and more are behind. While it was always the last to come
that was refused, who joined late found full queues everywhere: one of a hundred simulated peers got 84 of its 250
Mbit/s, and was done at 1.083 of the bound instead of 1.049."""

OVERLONG_S = 2.0
"""A request that has waited so long, because rarer ones came before it all the time, goes first."""

COMMON = 2
"""A chunk that so many neighbours hold spreads without us. What is rarer goes first; beyond, the peer that holds least:
by rarity alone, who is behind wants what is common, is served last, and falls further behind. With 250 peers of unequal
uplinks the last was done a tenth sooner in the simulation, with 100 hardly (one or two seeds)."""

MIN_WAITING = 2
"""So many may wait however slow the uplink is, so that it is never idle between two requests."""

STALL_S, STALL_FACTOR = 0.1, 3.0
"""An upload of which nothing moved for so long, and for so many times what the measured uplink explains, is waiting for
its reader, or for a lost packet to be sent again. TCP does that for 0.2 s at least."""

SLOW_S, SLOW_FACTOR, UNDERUSED = 0.06, 2.0, 0.9
"""After so long, an upload that got on less than half as far as its share of the uplink, which has been used less than
nine tenths of late, waits for its reader as well, though it moves: two readers at 10 and 20 Mbit/s held two of the
three lanes of a source at 50, which then sent 40; and a reader whose acknowledgements wait behind what it uploads takes
12 Mbit/s of 100."""

UNKNOWN_STALL_S = 0.5
"""The same while the uplink has not been measured."""

MIN_RETRY_S, MAX_RETRY_S = 0.1, 2.0
"""When a peer that was refused may come again: when about half of what waits now is gone."""

MAX_SERVED = 1024
"""Peers of whom it is remembered when they were served last; then all are forgotten, and equal."""

SMOOTHING = 0.1
"""Weight of a slower measurement of the uplink; a faster one counts at once."""

MEASURE_S = 0.25
"""Without a break so long must the uplink be busy to be measured: a single chunk may go into buffers at once."""

BEST_CHUNKS, MAX_SPAN_S = 4, 1.0
"""The best rate is one at which so many chunks left, or what left in so long: beside that, what fits into the routers
before us is little. On 10 Mbit/s a chunk may vanish in them at once."""

BEST_OF_S = 10.0
"""The best rate is that of the last two spans of so long; first measures, which include buffers, do not count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OfRequest:
    """Base of events and effects that are of one request: for the chunk `cid`, by `peer`."""

    peer: PeerId
    cid: Cid


@dataclass(frozen=True, kw_only=True, slots=True)
class Requested(OfRequest):
    """`peer` wants a chunk of `size` bytes that is held."""

    size: int


class Withdrawn(OfRequest):
    """`peer` no longer wants it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """So many bytes of what is being sent to `peer` have left, and more is to come."""

    peer: PeerId
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """What was begun for `peer` is over, whether all of it was sent or not."""

    peer: PeerId


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """Time has passed: look for uploads that do not move."""


Event = Requested | Withdrawn | Moved | Sent | Tick


class Begin(OfRequest):
    """Effect: send this chunk to `peer` now; say Sent when that is over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refuse(OfRequest):
    """Effect: tell `peer` that it should ask elsewhere, or here again after `retry_s`."""

    retry_s: float


class Drop(OfRequest):
    """Effect: tell `peer` that what it withdrew will not come."""


Effect = Begin | Refuse | Drop


@dataclass(kw_only=True, slots=True)
class _Waiting:
    size: int
    since: float
    order: int


@dataclass(kw_only=True, slots=True)
class _Upload:
    """One under way: what of its `size` has not left, how much left last, at `moved_at`; `slow` ones stay stalled."""

    size: int
    left: int
    began_at: float
    moved_at: float
    piece: int
    stalled: bool = False
    slow: bool = False


def _nobody(peer: PeerId, cid: Cid) -> bool:
    return False


def _unknown(cid: Cid) -> int:
    return 0


@dataclass(kw_only=True)
class UploadQueue:
    """See the module's paragraph.

    Args:
        num_holders: how many other peers are known to hold a chunk.
        is_promised: whether this node offered a chunk to a peer, that is, asked it to ask.
        num_held: how many chunks of what the chunk is part of a peer is known to hold.
    """

    num_holders: Callable[[Cid], int] = _unknown
    is_promised: Callable[[PeerId, Cid], bool] = _nobody
    num_held: Callable[[PeerId, Cid], int] = lambda peer, cid: 0
    lanes: int = LANES
    _waiting: dict[tuple[PeerId, Cid], _Waiting] = field(default_factory=dict)
    _sending: dict[PeerId, _Upload] = field(default_factory=dict)
    _num_stalled: int = 0
    _waiting_bytes: int = 0
    _order: int = 0
    _size: int = 1
    _served: dict[PeerId, int] = field(default_factory=dict)
    _bytes_per_s: float = 0.0
    _resting: bool = True
    _measured_from: float = 0.0
    _moved_bytes: int = 0
    _latest: float = 0.0
    _filling: bool = True
    _span_bytes: int = 0
    _span_from: float = 0.0
    _best: float = 0.0
    _best_before: float = 0.0
    _best_since: float = 0.0

    @property
    def idle(self) -> bool:
        """Whether the uplink is idle, or will be when the one upload that moves is over."""
        return self._moving() + len(self._waiting) < 2

    @property
    def lanes_now(self) -> int:
        """By the best rate of late: what is slow just now may wait for a reader, and needs more lanes, not fewer."""
        best = self._best_of_late
        return min(1 + int(LANE_S * best / self._size), self.lanes) if best else self.lanes

    @property
    def _best_of_late(self) -> float:
        """The uplink's best rate of the last one or two spans of BEST_OF_S; 0 if it was not measured."""
        return max(self._best, self._best_before)

    @property
    def waiting(self) -> list[tuple[PeerId, Cid]]:
        """Who waits for what, in the order of asking."""
        return list(self._waiting)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take in one event at time `now` (seconds, monotonic) and return what to do, in this order."""
        effects: list[Effect] = []
        match event:
            case Requested(peer=peer, cid=cid, size=size):
                if (peer, cid) in self._waiting:
                    return [Refuse(peer=peer, cid=cid, retry_s=self._retry_s())]
                has_room = self._has_room(peer, cid, size)
                self._order += 1
                self._size = max(1, size)
                self._waiting[peer, cid] = _Waiting(size=size, since=now, order=self._order)
                self._waiting_bytes += size
                if not has_room:
                    effects.append(self._refuse_one(peer, cid, now))
            case Moved(peer=peer, size=size):
                self._move(peer, size, now)
            case Sent(peer=peer):
                self._move(peer, None, now)
                self._sending.pop(peer, None)
            case Withdrawn(peer=peer, cid=cid):
                if self._take(peer, cid) is not None:
                    effects.append(Drop(peer=peer, cid=cid))
            case Tick():
                pass
        self._find_stalled(now)
        effects += self._begin(now)
        self._resting = not self._sending
        return effects

    def _has_room(self, peer: PeerId, cid: Cid, size: int) -> bool:
        if self.is_promised(peer, cid):
            return True
        if len(self._waiting) >= MAX_WAITING or sum(key[0] == peer for key in self._waiting) >= MAX_WAITING_PER_PEER:
            return False
        return len(self._waiting) < MIN_WAITING or self._wait_s() <= MAX_WAIT_S

    def _refuse_one(self, peer: PeerId, cid: Cid, now: float) -> Refuse:
        """There is one too many since `peer` asked: its own, unless it is far behind and not beyond its share."""
        refused = peer, cid
        if sum(key[0] == peer for key in self._waiting) <= MAX_WAITING_PER_PEER:
            last = max(self._waiting, key=lambda key: (self._urgency(key, now), self._turn(key)))
            *classes, held = self._urgency(refused, now)
            *others, others_held = self._urgency(last, now)
            if classes <= others and held + BEHIND <= others_held:
                refused = last
        self._take(*refused)
        return Refuse(peer=refused[0], cid=refused[1], retry_s=self._retry_s())

    def _wait_s(self) -> float:
        """How long a request that came now would wait; nothing is known of an uplink that was never measured."""
        return self._waiting_bytes / self._bytes_per_s if self._bytes_per_s else 0.0

    def _retry_s(self) -> float:
        return min(max(self._wait_s() / 2, MIN_RETRY_S), MAX_RETRY_S)

    def _take(self, peer: PeerId, cid: Cid) -> _Waiting | None:
        if (waiting := self._waiting.pop((peer, cid), None)) is not None:
            self._waiting_bytes -= waiting.size
        return waiting

    def _moving(self) -> int:
        return len(self._sending) - self._num_stalled

    def _begin(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        lanes = self.lanes_now
        while self._waiting and self._moving() < lanes and len(self._sending) < MAX_UPLOADS:
            free = [key for key in self._waiting if key[0] not in self._sending]
            if not free:
                break
            peer, cid = min(free, key=lambda key: (self._urgency(key, now), self._turn(key)))
            waiting = self._take(peer, cid)
            assert waiting is not None
            if self._resting:
                self._resting, self._measured_from, self._moved_bytes = False, now, 0
                self._filling = True
            self._sending[peer] = _Upload(
                size=waiting.size, left=waiting.size, began_at=now, moved_at=now, piece=waiting.size
            )
            self._order += 1
            if len(self._served) >= MAX_SERVED:
                self._served.clear()
            self._served[peer] = self._order
            effects.append(Begin(peer=peer, cid=cid))
        return effects

    def _urgency(self, key: tuple[PeerId, Cid], now: float) -> tuple[bool, bool, int, int]:
        """Promised, then overlong waits, the rarest, who holds least: the least goes first."""
        peer, cid = key
        return (
            not self.is_promised(peer, cid),
            now - self._waiting[key].since < OVERLONG_S,
            min(self.num_holders(cid), COMMON),
            self.num_held(peer, cid),
        )

    def _turn(self, key: tuple[PeerId, Cid]) -> tuple[int, int]:
        """Among equally urgent ones: who was served longest ago, first come."""
        return self._served.get(key[0], 0), self._waiting[key].order

    def _move(self, peer: PeerId, size: int | None, now: float) -> None:
        """`size` bytes have left, or all that was left of it."""
        if (upload := self._sending.get(peer)) is None:
            return
        moved = upload.left if size is None else min(size, upload.left)
        upload.left, upload.piece = upload.left - moved, moved
        upload.moved_at = now
        if upload.stalled and (size is None or not upload.slow):
            upload.stalled = False
            self._num_stalled -= 1
        self._moved_bytes += moved
        busy_s = now - self._measured_from
        if busy_s >= MEASURE_S:
            self._measured(self._moved_bytes, busy_s, now)
            self._measured_from, self._moved_bytes = now, 0

    def _measured(self, moved_bytes: int, busy_s: float, now: float) -> None:
        self._latest = bytes_per_s = moved_bytes / busy_s
        if bytes_per_s > self._bytes_per_s:
            self._bytes_per_s = bytes_per_s
        else:
            self._bytes_per_s += SMOOTHING * (bytes_per_s - self._bytes_per_s)
        if now - self._best_since > BEST_OF_S:
            self._best_since, self._best_before, self._best = now, self._best, 0.0
        if self._filling:
            self._filling, self._span_bytes, self._span_from = False, 0, now
            return
        self._span_bytes += moved_bytes
        span_s = now - self._span_from
        if self._span_bytes >= BEST_CHUNKS * self._size or span_s >= MAX_SPAN_S:
            self._best = max(self._best, self._span_bytes / span_s)
            self._span_bytes, self._span_from = 0, now

    def _find_stalled(self, now: float) -> None:
        moving, best = self._moving(), self._best_of_late
        share = best / self.lanes_now if self._latest < UNDERUSED * best else 0.0
        for upload in self._sending.values():
            if upload.stalled:
                continue
            upload.slow = self._lags(upload, share, now)
            if upload.slow or self._stands_still(upload, moving, now):
                upload.stalled = True
                self._num_stalled += 1

    def _lags(self, upload: _Upload, bytes_per_s: float, now: float) -> bool:
        taken_s, moved = now - upload.began_at, upload.size - upload.left
        return taken_s > SLOW_S and moved + upload.piece < taken_s * bytes_per_s / SLOW_FACTOR

    def _stands_still(self, upload: _Upload, moving: int, now: float) -> bool:
        if now - upload.moved_at <= STALL_S:
            return False
        known = self._bytes_per_s
        explained = moving * upload.piece / known if known else UNKNOWN_STALL_S / STALL_FACTOR
        return now - upload.moved_at > STALL_FACTOR * explained
