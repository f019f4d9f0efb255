"""Decide which request is answered next: few uploads at a time; promised chunks, rare chunks, then peers that lag.

    asked --begin--> sending --sent--> over
      |                 \\--stalled: goes on, but its lane is given to another
      +-- refused (queue full, or too long a wait), or withdrawn

A pure core. An upload occupies a lane while it moves. The lanes are few, because more uploads would only divide the
uplink and delay first copies.

Invariants:

- At most `LANES` uploads that move are in progress, fewer on a slow uplink, and at most `MAX_UPLOADS` in all.
- At most one upload goes to the same peer.
- At most `MAX_WAITING` requests wait, and at most `MAX_WAITING_PER_PEER` of one peer.
- Without room, or if the wait would exceed `MAX_WAIT_S`, a request is refused at once rather than kept in a silent
  queue. There are two exceptions. A request for a chunk that this node offered is kept. If its peer is far behind, the
  least urgent waiting request is refused instead.
- An upload that does not move, or that lags behind its share while the uplink has capacity to spare, holds no lane.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from protocol.core.ids import Cid, PeerId

LANES = 3
"""Uploads at a time: one keeps the uplink busy, a second follows without a gap, a third makes up for a slow reader."""

LANE_S = 0.1
"""Seconds. There is one lane beyond the first for each chunk that the uplink sends in this time. If a chunk takes
longer, the gap between two chunks is not worth filling. Each lane delays the first copy that others could relay. It
also keeps about 64 KiB standing in the routers before us. Requests wait behind these bytes, and so do acknowledgements,
without which nothing arrives. At 50 Mbit/s and 128 KiB there are three lanes, at 10 Mbit/s one. With three at 10 Mbit/s
the last of 250 unequal peers was done a tenth later (one seed). With two the last of 8 on emulated links was done at
1.21 of the bound and not 1.15 (medians of three)."""

MAX_UPLOADS = 12
"""Uploads at a time, with those that have lost their lane. It limits chunks in memory and slow readers served."""

MAX_WAITING = 16
"""Waiting requests: a third of a second of 128 KiB chunks at 50 Mbit/s; beyond it BUSY sends the peer elsewhere."""

MAX_WAITING_PER_PEER = 8
"""Waiting requests of one peer: its largest window of requests."""

MAX_WAIT_S = 0.3
"""Seconds. A request that would wait longer is better sent to another holder."""

BEHIND = 16
"""Chunks. Without room, a request of a peer that holds so many chunks fewer takes the place of the one that would be
served last. Every place taken costs a round trip, so peers that hold about equally many do not displace each other:
only two windows and more count as behind. When the last request to arrive was always the one refused, peers that joined
late found full queues everywhere. One of a hundred simulated peers got 84 of its 250 Mbit/s, and was done at 1.083 of
the bound instead of 1.049."""

OVERLONG_S = 2.0
"""Seconds. A request that has waited so long, because rarer ones always came before it, goes first."""

COMMON = 2
"""Holders. A chunk that so many neighbours hold spreads without us. Rarer chunks go first; beyond, the peer that holds
least. By rarity alone, a peer that is behind wants common chunks, is served last, and falls further behind. With 250
peers of unequal uplinks the last was done a tenth sooner in the simulation, with 100 hardly (one or two seeds)."""

MIN_WAITING = 2
"""Requests that may wait however slow the uplink is, so that it is never idle between two requests."""

STALL_S, STALL_FACTOR = 0.1, 3.0
"""An upload that has not moved for STALL_S, and for STALL_FACTOR times what the measured uplink explains, waits for its
reader, or for a lost packet to be resent. TCP takes at least 0.2 s to resend."""

SLOW_S, SLOW_FACTOR, UNDERUSED = 0.06, 2.0, 0.9
"""After SLOW_S, an upload that moves also counts as waiting for its reader if it got less than half as far as its share
of the uplink allows. That applies while the uplink carries less than nine tenths of its best rate. Two readers at 10
and 20 Mbit/s held two of the three lanes of a source at 50, which then sent 40. A reader whose acknowledgements wait
behind its own uploads takes 12 Mbit/s of 100."""

UNKNOWN_STALL_S = 0.5
"""Seconds without movement after which an upload counts as stalled while the uplink has not been measured."""

MIN_RETRY_S, MAX_RETRY_S = 0.1, 2.0
"""Seconds after which a refused peer may come again: when about half of the waiting bytes are gone, within bounds."""

MAX_SERVED = 1024
"""Peers for which it is remembered when they were served last. Beyond, all are forgotten, and equal."""

SMOOTHING = 0.1
"""Weight of a slower measurement of the uplink; a faster one counts at once."""

MEASURE_S = 0.25
"""Seconds for which the uplink must be busy without a break to be measured: one chunk may go into buffers at once."""

BEST_CHUNKS, MAX_SPAN_S = 4, 1.0
"""The best rate is measured over so many chunks, or over so many seconds: compared with that, the bytes that fit into
the routers before us are few. At 10 Mbit/s a chunk may vanish in them at once."""

BEST_OF_S = 10.0
"""Seconds. The best rate is that of the last two spans of this length. First measures include buffers and do not count.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class OfRequest:
    """Base of events and effects about one request: for the chunk `cid`, by `peer`."""

    peer: PeerId
    cid: Cid


@dataclass(frozen=True, kw_only=True, slots=True)
class Requested(OfRequest):
    """`peer` requests a chunk of `size` bytes that this node holds."""

    size: int


class Withdrawn(OfRequest):
    """`peer` no longer wants the chunk."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Moved:
    """`size` bytes of the upload to `peer` have left, and more follow."""

    peer: PeerId
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """The upload to `peer` is over, whether all of it was sent or not."""

    peer: PeerId


@dataclass(frozen=True, kw_only=True, slots=True)
class Tick:
    """Time has passed: look for uploads that do not move."""


Event = Requested | Withdrawn | Moved | Sent | Tick


class Begin(OfRequest):
    """Effect: send this chunk to `peer` now, and report Sent when that is over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Refuse(OfRequest):
    """Effect: tell `peer` to ask elsewhere, or here again after `retry_s`."""

    retry_s: float


class Drop(OfRequest):
    """Effect: tell `peer` that the chunk it withdrew will not come."""


Effect = Begin | Refuse | Drop


@dataclass(kw_only=True, slots=True)
class _Waiting:
    size: int
    since: float
    order: int


@dataclass(kw_only=True, slots=True)
class _Upload:
    """One upload. `left` of its `size` bytes are still to be sent; the last `piece` was sent at `moved_at`.

    A `slow` upload stays stalled when it moves.
    """

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
    """Decide which waiting request an upload begins for, and which requests are refused.

    Args:
        num_holders: number of other peers that are known to hold a chunk.
        is_promised: whether this node offered a chunk to a peer. An offer asks the peer to request the chunk.
        num_held: number of chunks of the same version that a peer is known to hold.
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
        """Lanes by the best recent rate: an uplink that is slow now may wait for a reader, and needs more lanes."""
        best = self._best_of_late
        return min(1 + int(LANE_S * best / self._size), self.lanes) if best else self.lanes

    @property
    def _best_of_late(self) -> float:
        """The uplink's best rate of the last one or two spans of BEST_OF_S; 0 if it was not measured."""
        return max(self._best, self._best_before)

    @property
    def waiting(self) -> list[tuple[PeerId, Cid]]:
        """The peers that wait and the chunks that they wait for, in the order of asking."""
        return list(self._waiting)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle one event at time `now` (seconds, monotonic); return the effects in order."""
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
        """Refuse one request too many: that of `peer`, unless `peer` is far behind and not above its share."""
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
        """Return how long a request that came now would wait; 0 if the uplink was never measured."""
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
        """Return a key, least first: promised chunks, then overlong waits, the rarest chunk, the peer with fewest."""
        peer, cid = key
        return (
            not self.is_promised(peer, cid),
            now - self._waiting[key].since < OVERLONG_S,
            min(self.num_holders(cid), COMMON),
            self.num_held(peer, cid),
        )

    def _turn(self, key: tuple[PeerId, Cid]) -> tuple[int, int]:
        """Return a key among equally urgent requests: the peer served longest ago, then the first to come."""
        return self._served.get(key[0], 0), self._waiting[key].order

    def _move(self, peer: PeerId, size: int | None, now: float) -> None:
        """Note that `size` bytes of the upload have left, or all that was left of it."""
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
