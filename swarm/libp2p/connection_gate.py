"""Decide who may shake hands with this node, which strangers stay connected, and how often a peer may do what.

    accepted --knock--> silent --spoke--> shaking hands --entered--> stranger or member

A connection that has sent nothing costs a file descriptor; its first bytes cost some milliseconds of elliptic curve
arithmetic. So handshakes have a limited number of places (`FairRoom`), and first bytes have rates: one for each origin,
and one for all unknown origins together. A peer's small frames have rates as well: one for each connection, and another
for all strangers together. This last one does not count the first FRESH_UNITS of a connection, so that a peer that
joins does not wait behind peers that flood us.

A pure core, as its parts are.

Invariants:

- A known origin is never refused because of what unknown ones do.
- When many connections arrive at once, they wait before their handshake, and take nobody's place.
- Refusals are counted by budget and by origin or peer; the memory for that is bounded.
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
"""Inbound connections at once that have not shown who they are. Each takes a file descriptor and 100 KiB at most."""

FIRST_BYTES_S = 4.0
"""Seconds that an inbound connection may stay silent. A dialler speaks at once; two lost packets take TCP 3 s."""

HANDSHAKE_S = 8.0
"""Seconds from accepting a connection to knowing its peer: five round trips. It is shorter than DIAL_TIMEOUT_S, so that
the dialler gets an answer rather than a timeout."""

SETTLE_S = {Claim.UNKNOWN: 3.0, Claim.KNOWN: 8.0, Claim.AWAITED: 8.0}
"""Seconds for which a stranger's place is safe from others like it, to greet us and be welcomed. On a busy machine a
join takes seconds. If 64 unknown ones only occupy places, 21 others a second get in."""

MAX_RETURNING, MAX_RETURNING_OF_ORIGIN, RETURNING_S = 32, 8, 2.0
"""Known connections that shake hands or wait to be welcomed: at once in all, and of one origin, and the same again for
awaited ones. Each counts for RETURNING_S seconds at most. With more of them each would take longer, until none finishes
in time. With round trips of 200 ms this lets 30 a second in; if others only occupy places, still 16."""

WAIT_S = 5.0
"""Seconds that an inbound connection waits for its turn. Then it is closed, and its node tries again at a random
moment."""

ORIGIN_HANDSHAKES = Rate(per_s=5.0, burst=128.0)
"""Handshakes of one origin. A laboratory of 100 nodes behind one address that all return at once stays below it."""

UNKNOWN_HANDSHAKES = Rate(per_s=50.0, burst=512.0)
"""Handshakes of all unknown origins together: 3 ms of a core each, so about an eighth of a core in the long run."""

MEMBER_UNITS = Rate(per_s=5000.0, burst=20_000.0)
"""Small frames of one member's connection, see `yamux.SMALL_FRAME_BYTES`. The busiest honest member, which relays
chunks of 128 KiB at 1 Gbit/s and announces what it gains, sends about 2,000 a second."""

STRANGER_UNITS = Rate(per_s=200.0, burst=2000.0)
"""Small frames of one stranger's connection: ten new streams a second. A join takes ten streams and fifty frames."""

STRANGERS_UNITS = Rate(per_s=2000.0, burst=10_000.0)
"""Small frames of all strangers together: a hundred new streams a second, a tenth of a core."""

FRESH_UNITS = 200.0
"""Units of each connection that the rate of all strangers does not count."""

MAX_EXPECTED = 4096
"""Peers, and as many origins, that are remembered as known; beyond that the oldest are forgotten."""

MAX_NAMED = 256
"""Origins and peers that are counted by name between two reports of refusals; the others count without a name."""

HANDSHAKES, HANDSHAKE_RATE, STRANGERS, CONNECTIONS, STREAM_RATE, BYTES = (
    "handshakes",
    "handshake_rate",
    "strangers",
    "connections",
    "stream_rate",
    "bytes",
)
"""Budgets, by the names under which refusals are reported."""


@dataclass(kw_only=True)
class Refusals:
    """Count what was refused since the last report."""

    _times: Counter[str] = field(default_factory=Counter)
    _by: dict[str, Counter[str]] = field(default_factory=dict)

    def note(self, budget: str, who: str) -> None:
        """Note that this budget refused `who`, an origin or a peer."""
        self._times[budget] += 1
        by = self._by.setdefault(budget, Counter())
        if who in by or len(by) < MAX_NAMED:
            by[who] += 1

    def take(self) -> list[Refusal]:
        """Return the refusals by budget, each with the origin or peer that was refused most, and start again at 0."""
        told = []
        for budget, times in sorted(self._times.items()):
            who, who_times = self._by[budget].most_common(1)[0]
            told.append(Refusal(budget=budget, times=times, who=who, who_times=who_times))
        self._times, self._by = Counter(), {}
        return told


class _Memory:
    """A set that forgets the keys that were added longest ago."""

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
    """Count what one connection may still do without waiting."""

    is_member: bool
    _own: Bucket = field(init=False)
    _fresh: float = FRESH_UNITS

    def __post_init__(self) -> None:
        self._own = Bucket(rate=MEMBER_UNITS if self.is_member else STRANGER_UNITS)

    def change(self, *, is_member: bool) -> None:
        """Make the peer a member, or a stranger, from now on."""
        if self.is_member is not is_member:
            self.is_member = is_member
            self._own = Bucket(rate=MEMBER_UNITS if is_member else STRANGER_UNITS)

    def charge(self, cost: float, strangers: Bucket, now: float) -> float:
        """Return the seconds to wait before reading on."""
        wait_s = self._own.charge(cost, now)
        if self.is_member:
            return wait_s
        fresh = min(cost, self._fresh)
        self._fresh -= fresh
        return wait_s if cost == fresh else max(wait_s, strangers.charge(cost - fresh, now))


@dataclass(kw_only=True)
class Door:
    """Admit connections and strangers. Connections have numbers, which the caller makes."""

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
    """Strangers whose connection is established."""
    _returning: dict[Claim, dict[int, tuple[str, float]]] = field(
        default_factory=lambda: {claim: {} for claim in Claim}
    )
    """Connections that are joining: their origin, and when they began, by class, in that order."""

    @property
    def num_strangers(self) -> int:
        return len(self._inside)

    def expect(self, peers: Iterable[PeerId], origins: Iterable[str]) -> None:
        """Remember that these were members before, or are: they take precedence over unknown ones."""
        for peer in peers:
            self._peers.add(peer)
        for origin in origins:
            self._origins.add(origin)

    def await_from(self, origins: Iterable[str]) -> None:
        """Note the origins of members that work waits for; an origin is named once for each such member.

        They go first, until as many connections from there are members.
        """
        self._awaited = Counter(islice(origins, MAX_EXPECTED))

    def claim_of(self, origin: str, peer: PeerId | None = None) -> Claim:
        """Return how well we know this origin, and the peer, if the connection has shown it."""
        if self._awaited[origin] > 0:
            return Claim.AWAITED
        return Claim.KNOWN if origin in self._origins or (peer or "") in self._peers else Claim.UNKNOWN

    def has_share(self, origin: str, now: float) -> bool:
        """Return whether few enough connections of this origin are joining that one more may."""
        claim = self.claim_of(origin)
        return not claim.is_known or self._num_returning(claim, now, origin) < MAX_RETURNING_OF_ORIGIN

    def has_place(self, origin: str, now: float) -> bool:
        """Return whether there is a place for one more stranger of this origin.

        A place counts too if its holder had SETTLE_S to be welcomed. At most MAX_RETURNING of a class may be joining.
        """
        claim = self.claim_of(origin)
        if claim.is_known and self._num_returning(claim, now) >= MAX_RETURNING:
            return False
        return self._strangers.since(origin, now, claim) + SETTLE_S[claim] <= now

    def begin(self, number: int, origin: str, now: float) -> int | None:
        """Begin a handshake and give it a stranger's place; return the number of the connection that loses its own."""
        claim = self.claim_of(origin)
        if claim.is_known:
            self._returning[claim][number] = origin, now
        return self._give_way(self._strangers.enter(number, origin, now, claim))

    def knock(self, number: int, origin: str, now: float) -> int | None:
        """Note an accepted connection; return the number of the one to close instead, if there is no place left."""
        self._names[number] = origin
        return self._refused(HANDSHAKES, self._handshakes.enter(number, origin, now, self.claim_of(origin)))

    def note_first_bytes(self, number: int, origin: str, now: float) -> bool:
        """Note its first bytes; return False if origins like it send them too often, and it must be closed."""
        self._handshakes.note_progress(number, now)
        is_known = self.claim_of(origin).is_known
        if self._rates.of(origin).admit(now) and (is_known or self._unknown.admit(now)):
            return True
        self.refusals.note(HANDSHAKE_RATE, origin)
        return False

    def note_progress(self, number: int, now: float) -> None:
        """Note progress in its handshake."""
        self._handshakes.note_progress(number, now)

    def admit(self, number: int, origin: str, peer: PeerId, now: float) -> int | None:
        """Note that a stranger has shown who it is.

        If it had no place, return the number of the connection that loses one for it.
        """
        self._names[number] = origin
        self._inside.add(number)
        if number in self._strangers:
            self._strangers.note_progress(number, now)
            self._strangers.change(number, self.claim_of(origin, peer))
            return None
        return self._give_way(self._strangers.enter(number, origin, now, self.claim_of(origin, peer)))

    def note_trusted(self, number: int) -> None:
        """Free its stranger's place, since it is a member's connection now."""
        self._leave(number)
        if self._awaited[origin := self._names.get(number, "")] > 0:
            self._awaited[origin] -= 1

    def note_handshake_end(self, number: int) -> None:
        """Note that the handshake is over, whether it succeeded or not."""
        self._handshakes.leave(number)

    def note_closed(self, number: int) -> None:
        """Note that the connection is gone."""
        self._handshakes.leave(number)
        self._leave(number)
        self._names.pop(number, None)

    def _num_returning(self, claim: Claim, now: float, origin: str | None = None) -> int:
        """Return how many connections of this class, or of this origin only, began to join within RETURNING_S."""
        returning = self._returning[claim]
        while (first := next(iter(returning), None)) is not None and returning[first][1] + RETURNING_S <= now:
            del returning[first]
        return len(returning) if origin is None else sum(origin == other for other, _ in returning.values())

    def _leave(self, number: int) -> None:
        """Free its stranger's place, and count it as joining no longer."""
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
