"""A room with few places, kept open for those who have not been here: who must leave when it is full.

Used for handshakes under way and for connections of strangers. A newcomer always gets in, so nobody can shut the door
by sitting in all places. Whoever leaves is the longest idle of the origin that has most places: one address with 300
connections only ever displaces its own. Many addresses with one connection each displace those of them that have made
no progress for longest, and a dialler makes progress with every round trip.

Origins where members were before are known; strangers of unknown origins have at most half of the places while known
ones ask for more. Of the known ones some are awaited, since work waits for them: these keep their place for
`kept_s`. An origin is an IPv4 address, or the first 64 bits of an IPv6 one.

A pure core.

Invariants:
- At most `size` guests are in the room after each call.
- Only an origin with as many places as any other of its class loses one.
- No known guest leaves while unknown ones have more than half of the places.
- No awaited guest that made progress within `kept_s` leaves while there is any other of its class.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

IPV6_ORIGIN_BITS = 64
"""A provider gives each customer at least so many, in which he makes up addresses as he likes (RFC 6177)."""


def origin_of(host: str) -> str:
    """Return what is counted as one origin: the IPv4 address, or the /64 network of an IPv6 one."""
    ip = ipaddress.ip_address(host)
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(ip) >> 64 << 64, IPV6_ORIGIN_BITS)))


class Claim(Enum):
    """What a guest's origin is to us."""

    UNKNOWN = "unknown"
    KNOWN = "known"
    AWAITED = "awaited"

    @property
    def is_known(self) -> bool:
        """Whether members were there before."""
        return self is not Claim.UNKNOWN


@dataclass(kw_only=True)
class _Guest:
    origin: str
    claim: Claim
    moved_at: float


@dataclass(kw_only=True)
class FairRoom:
    """See the module's paragraph. `size`: how many guests there may be at once; times are seconds, monotonic."""

    size: int
    kept_s: float
    _guests: dict[int, _Guest] = field(default_factory=dict)
    _places: Counter[tuple[bool, str]] = field(default_factory=Counter)
    _unknown: int = 0

    def __len__(self) -> int:
        return len(self._guests)

    def __contains__(self, number: int) -> bool:
        return number in self._guests

    def enter(self, number: int, origin: str, now: float, claim: Claim) -> int | None:
        """Let in guest `number`; return the number of whoever leaves instead, if the room was full."""
        self._add(number, _Guest(origin=origin, claim=claim, moved_at=now))
        if len(self._guests) <= self.size:
            return None
        victim = self._victim(now)
        self.leave(victim)
        return victim

    def since(self, origin: str, now: float, claim: Claim) -> float:
        """Since when whoever would leave for such a newcomer has made no progress.

        Minus infinity where nobody would leave, or one with another claim; `now` where it would be the newcomer itself.
        """
        if len(self._guests) < self.size:
            return -math.inf
        newcomer = max(self._guests) + 1
        self._add(newcomer, _Guest(origin=origin, claim=claim, moved_at=now))
        victim = self._guests[self._victim(now)]
        self.leave(newcomer)
        return victim.moved_at if victim.claim is claim else -math.inf

    def change(self, number: int, claim: Claim) -> None:
        """More is known of a guest than when it came. Quiet when it is not there."""
        if (guest := self._guests.get(number)) is not None:
            self.leave(number)
            self._add(number, _Guest(origin=guest.origin, claim=claim, moved_at=guest.moved_at))

    def note_progress(self, number: int, now: float) -> None:
        """The guest made progress."""
        if (guest := self._guests.get(number)) is not None:
            guest.moved_at = now

    def leave(self, number: int) -> None:
        """The guest is gone. Quiet when it was not there."""
        if (guest := self._guests.pop(number, None)) is None:
            return
        place = guest.claim.is_known, guest.origin
        self._places[place] -= 1
        if not self._places[place]:
            del self._places[place]
        self._unknown -= not guest.claim.is_known

    def _add(self, number: int, guest: _Guest) -> None:
        self._guests[number] = guest
        self._places[guest.claim.is_known, guest.origin] += 1
        self._unknown += not guest.claim.is_known

    def _victim(self, now: float) -> int:
        """The longest idle guest of the origins that have most places, in the class that has too many; of those who are
        kept only if there are no others."""
        known = self._unknown <= self.size // 2
        those = [(number, guest) for number, guest in self._guests.items() if guest.claim.is_known is known]
        those = [one for one in those if not self._is_kept(one[1], now)] or those
        most = max(self._places[known, guest.origin] for _, guest in those)
        return min((guest.moved_at, number) for number, guest in those if self._places[known, guest.origin] == most)[1]

    def _is_kept(self, guest: _Guest, now: float) -> bool:
        return guest.claim is Claim.AWAITED and now < guest.moved_at + self.kept_s
