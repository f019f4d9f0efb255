"""Decides who may shake hands with this node, who of the strangers stays connected, and how often anybody may do what.

    accepted --knock--> silent --spoke--> shaking hands --entered--> stranger or member

A connection that has said nothing costs a file descriptor; its first bytes cost a core some milliseconds of elliptic
curves. So there are places for handshakes (`FairRoom`), and rates for those who begin to speak: one for each origin,
and one for all unknown origins together. What a peer does over its connection has a rate as well: one for each, and
one more for all strangers together, of which the first FRESH_UNITS of a connection are free, so that whoever joins does
not stand behind those who flood us.

A pure core, as its parts are.

Invariants:
- A known origin is never refused because of what unknown ones do.
- Where many come at once, those who wait for a place wait before their handshake, and cost nobody his.
- What is refused is counted, by budget and by whom; what is remembered for that is bounded.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import islice

from protocol.core.ids import PeerId
from swarm.libp2p.fair_slots import Claim, FairRoom
from swarm.libp2p.memory_budget import MAX_STRANGERS
from swarm.transport.event_rate import Bucket, Buckets, Rate
from swarm.transport.interface import Refusal

MAX_HANDSHAKES = 256
"""Inbound connections that have not shown who they are, at once. Each is a file descriptor and some 100 KiB at most."""

FIRST_BYTES_S = 4.0
"""How long an inbound connection may say nothing. A dialler speaks at once; two lost packets take TCP 3 s."""

HANDSHAKE_S = 8.0
"""From accepting to knowing who it is: five round trips, and sooner than a dialler gives up (DIAL_TIMEOUT_S), so that
it is told rather than kept waiting."""

SETTLE_S = {Claim.UNKNOWN: 3.0, Claim.KNOWN: 8.0, Claim.AWAITED: 8.0}
"""How long a stranger has its place for sure against its like, to greet us and be welcomed: on a busy machine a join
takes seconds. 64 unknown ones that only sit there let 21 others a second in."""

MAX_RETURNING, MAX_RETURNING_OF_ORIGIN, RETURNING_S = 32, 8, 2.0
"""Known ones that shake hands or wait to be welcomed, at once, in all and of one origin, and as many for whom work
waits; each counts for so long at most. Were there more, each would take longer, until none is done in time. With round
trips of 200 ms this lets 30 a second in; those who only sit there leave 16."""

WAIT_S = 5.0
"""How long an inbound connection waits for its turn. Then it is closed, and its node comes again, at a moment of its
own."""

ORIGIN_HANDSHAKES = Rate(per_s=5.0, burst=128.0)
"""Handshakes of one origin. A laboratory of 100 nodes behind one address that all come back at once is within it."""

UNKNOWN_HANDSHAKES = Rate(per_s=50.0, burst=512.0)
"""Handshakes of all unknown origins together: 3 ms of a core each, so an eighth of one in the long run."""

MEMBER_UNITS = Rate(per_s=5000.0, burst=20_000.0)
"""Small frames of one member's connection, see `yamux.SMALL_FRAME_BYTES`. The busiest honest one, which hands on chunks
of 128 KiB at 1 Gbit/s and tells what it gains, sends some 2,000 a second."""

STRANGER_UNITS = Rate(per_s=200.0, burst=2000.0)
"""The same of a stranger: ten new streams a second. Joining takes ten streams and fifty small frames."""

STRANGERS_UNITS = Rate(per_s=2000.0, burst=10_000.0)
"""The same of all strangers together: a hundred new streams a second, a tenth of a core."""

FRESH_UNITS = 200.0
"""Of each connection that the rate of all strangers does not count."""

MAX_EXPECTED = 4096
"""Peers, and as many origins, that are remembered as known; then the oldest are forgotten."""

MAX_NAMED = 256
"""Names remembered of those that a budget refused since that was last told; others are counted, and not named."""

HANDSHAKES, HANDSHAKE_RATE, STRANGERS, CONNECTIONS, STREAM_RATE, BYTES = (
    "handshakes",
    "handshake_rate",
    "strangers",
    "connections",
    "stream_rate",
    "bytes",
)
"""Budgets by the names under which refusals are told."""


@dataclass(kw_only=True)
class Refusals:
    """What was refused since it was last told."""

    _times: Counter[str] = field(default_factory=Counter)
    _by: dict[str, Counter[str]] = field(default_factory=dict)

    def note(self, budget: str, who: str) -> None:
        """This budget refused `who`, an origin or a peer."""
        self._times[budget] += 1
        by = self._by.setdefault(budget, Counter())
        if who in by or len(by) < MAX_NAMED:
            by[who] += 1

    def take(self) -> list[Refusal]:
        """Return what there is, by budget, with whoever was refused most, and begin anew."""
        told = []
        for budget, times in sorted(self._times.items()):
            who, who_times = self._by[budget].most_common(1)[0]
            told.append(Refusal(budget=budget, times=times, who=who, who_times=who_times))
        self._times, self._by = Counter(), {}
        return told


class _Memory:
    """A set that forgets whoever it was told of first."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str, None] = OrderedDict()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        self._keys[key] = None
        self._keys.move_to_end(key)
        if len(self._keys) > MAX_EXPECTED:
            self._keys.popitem(last=False)


@dataclass(kw_only=True)
class Pace:
    """What one connection may still do without waiting."""

    is_member: bool
    _own: Bucket = field(init=False)
    _fresh: float = FRESH_UNITS

    def __post_init__(self) -> None:
        self._own = Bucket(rate=MEMBER_UNITS if self.is_member else STRANGER_UNITS)

    def change(self, *, is_member: bool) -> None:
        """The peer is a member from now on, or a stranger."""
        if self.is_member is not is_member:
            self.is_member = is_member
            self._own = Bucket(rate=MEMBER_UNITS if is_member else STRANGER_UNITS)

    def charge(self, cost: float, strangers: Bucket, now: float) -> float:
        """Return how long to wait before reading on."""
        wait_s = self._own.charge(cost, now)
        if self.is_member:
            return wait_s
        fresh = min(cost, self._fresh)
        self._fresh -= fresh
        return wait_s if cost == fresh else max(wait_s, strangers.charge(cost - fresh, now))


@dataclass(kw_only=True)
class Door:
    """See the module's paragraph. Connections have numbers, which the caller makes."""

    refusals: Refusals = field(default_factory=Refusals)
    strangers_units: Bucket = field(default_factory=lambda: Bucket(rate=STRANGERS_UNITS))
    _handshakes: FairRoom = field(default_factory=lambda: FairRoom(size=MAX_HANDSHAKES, kept_s=HANDSHAKE_S))
    _strangers: FairRoom = field(default_factory=lambda: FairRoom(size=MAX_STRANGERS, kept_s=HANDSHAKE_S))
    _rates: Buckets[str] = field(default_factory=lambda: Buckets(rate=ORIGIN_HANDSHAKES))
    _unknown: Bucket = field(default_factory=lambda: Bucket(rate=UNKNOWN_HANDSHAKES))
    _origins: _Memory = field(default_factory=_Memory)
    _peers: _Memory = field(default_factory=_Memory)
    _awaited: Counter[str] = field(default_factory=Counter)
    _names: dict[int, str] = field(default_factory=dict)
    _inside: set[int] = field(default_factory=set)
    """Strangers whose connection stands."""
    _returning: dict[Claim, dict[int, tuple[str, float]]] = field(
        default_factory=lambda: {claim: {} for claim in Claim}
    )
    """Whence those came who are on their way in, and when they began, by their kind, in that order."""

    @property
    def num_strangers(self) -> int:
        return len(self._inside)

    def expect(self, peers: Iterable[PeerId], origins: Iterable[str]) -> None:
        """These were members before, or are: their like goes before those who are unknown."""
        for peer in peers:
            self._peers.add(peer)
        for origin in origins:
            self._origins.add(origin)

    def await_from(self, origins: Iterable[str]) -> None:
        """Members that work waits for are at these origins, one for each time that it is named. They go first until so
        many from there are members."""
        self._awaited = Counter(islice(origins, MAX_EXPECTED))

    def claim_of(self, origin: str, peer: PeerId | None = None) -> Claim:
        """What speaks for a connection from there, once it has shown who it is of that peer."""
        if self._awaited[origin] > 0:
            return Claim.AWAITED
        return Claim.KNOWN if origin in self._origins or (peer or "") in self._peers else Claim.UNKNOWN

    def has_share(self, origin: str, now: float) -> bool:
        """Whether few enough of this origin are on their way in that one more may be."""
        claim = self.claim_of(origin)
        return not claim.is_known or self._num_returning(claim, now, origin) < MAX_RETURNING_OF_ORIGIN

    def has_place(self, origin: str, now: float) -> bool:
        """Whether there is a place for one more stranger of this origin, or one that can be taken from another who had
        SETTLE_S to be welcomed; and whether fewer than MAX_RETURNING of its kind are on their way in."""
        claim = self.claim_of(origin)
        if claim.is_known and self._num_returning(claim, now) >= MAX_RETURNING:
            return False
        return self._strangers.since(origin, now, claim) + SETTLE_S[claim] <= now

    def begin(self, number: int, origin: str, now: float) -> int | None:
        """Its handshake begins, and it has a stranger's place from now on; return the number of whoever loses his."""
        claim = self.claim_of(origin)
        if claim.is_known:
            self._returning[claim][number] = origin, now
        return self._give_way(self._strangers.enter(number, origin, now, claim))

    def knock(self, number: int, origin: str, now: float) -> int | None:
        """A connection was accepted; return the number of the one to close instead, if there is no place left."""
        self._names[number] = origin
        return self._refused(HANDSHAKES, self._handshakes.enter(number, origin, now, self.claim_of(origin)))

    def note_first_bytes(self, number: int, origin: str, now: float) -> bool:
        """It said its first words; False if its like does so too often, and it is to be closed."""
        self._handshakes.note_progress(number, now)
        is_known = self.claim_of(origin).is_known
        if self._rates.of(origin).admit(now) and (is_known or self._unknown.admit(now)):
            return True
        self.refusals.note(HANDSHAKE_RATE, origin)
        return False

    def note_progress(self, number: int, now: float) -> None:
        """It got on with its handshake."""
        self._handshakes.note_progress(number, now)

    def admit(self, number: int, origin: str, peer: PeerId, now: float) -> int | None:
        """A stranger has shown who it is; return the number of whoever loses his place for it, if it had none."""
        self._names[number] = origin
        self._inside.add(number)
        if number in self._strangers:
            self._strangers.note_progress(number, now)
            self._strangers.change(number, self.claim_of(origin, peer))
            return None
        return self._give_way(self._strangers.enter(number, origin, now, self.claim_of(origin, peer)))

    def note_trusted(self, number: int) -> None:
        """It takes none of the strangers' places any more."""
        self._leave(number)
        if self._awaited[origin := self._names.get(number, "")] > 0:
            self._awaited[origin] -= 1

    def note_handshake_end(self, number: int) -> None:
        """The handshake is over, well or not."""
        self._handshakes.leave(number)

    def note_closed(self, number: int) -> None:
        """The connection is gone."""
        self._handshakes.leave(number)
        self._leave(number)
        self._names.pop(number, None)

    def _num_returning(self, claim: Claim, now: float, origin: str | None = None) -> int:
        """Those of this kind, or of this origin alone, that are on their way in: of those who began lately."""
        returning = self._returning[claim]
        while (first := next(iter(returning), None)) is not None and returning[first][1] + RETURNING_S <= now:
            del returning[first]
        return len(returning) if origin is None else sum(origin == other for other, _ in returning.values())

    def _leave(self, number: int) -> None:
        """It takes no stranger's place any more, and is not on its way in."""
        self._strangers.leave(number)
        self._inside.discard(number)
        for returning in self._returning.values():
            returning.pop(number, None)

    def _give_way(self, victim: int | None) -> int | None:
        if victim is not None:
            self._leave(victim)
        return self._refused(STRANGERS, victim)

    def _refused(self, budget: str, victim: int | None) -> int | None:
        if victim is not None:
            self.refusals.note(budget, self._names[victim])
        return victim
