"""Decide who leaves a room with few places when it is full, so that newcomers always get in.

Used for handshakes in progress and for connections of strangers. A newcomer always gets in, so nobody can shut the door
by occupying all places. The guest that leaves is the longest idle of the origin with the most places: one address with
300 connections displaces only its own. Among many addresses with one connection each, the one without progress for
longest leaves, and a dialler makes progress with every round trip.

An origin is an IPv4 address, or the first 64 bits of an IPv6 address. Origins where members were before are known.
Strangers of unknown origins have at most half of the places while known ones ask for more. Some known origins are
awaited, because work waits for them: these keep their place for `kept_s`.

A pure core.

Invariants:

- At most `size` guests are in the room after each call.
- Only an origin with as many places as any other of its class loses one.
- No known guest leaves while unknown ones have more than half of the places.
- No awaited guest that made progress within `kept_s` leaves while there is any other guest of its class.
"""

from __future__ import annotations

import ipaddress
import math
from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

IPV6_ORIGIN_BITS = 64
"""A provider gives each customer at least this prefix, in which he can make up addresses as he likes (RFC 6177)."""


def origin_of(host: str) -> str:
    """Return what counts as one origin: the IPv4 address, or the /64 network of an IPv6 address."""
    ip = ipaddress.ip_address(host)
    if isinstance(ip, ipaddress.IPv4Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(ip) >> 64 << 64, IPV6_ORIGIN_BITS)))


class Claim(Enum):
    """The class of a guest, by how well we know its origin."""

    UNKNOWN = "unknown"
    KNOWN = "known"
    AWAITED = "awaited"

    @property
    def is_known(self) -> bool:
        """Return whether members were there before."""
        return self is not Claim.UNKNOWN


@dataclass(kw_only=True)
class _Guest:
    origin: str
    claim: Claim
    moved_at: float


@dataclass(kw_only=True)
class FairRoom:
    """Assign places. `size`: most guests at once; `kept_s`: seconds that awaited guests are kept; monotonic seconds."""

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
        """Let in guest `number`; return the number of the guest that leaves instead, if the room was full."""
        self._add(number, _Guest(origin=origin, claim=claim, moved_at=now))
        if len(self._guests) <= self.size:
            return None
        victim = self._victim(now)
        self.leave(victim)
        return victim

    def since(self, origin: str, now: float, claim: Claim) -> float:
        """Return since when the guest that would leave for such a newcomer has made no progress.

        Minus infinity if nobody would leave, or a guest of another claim; `now` if it would be the newcomer itself.
        """
        if len(self._guests) < self.size:
            return -math.inf
        newcomer = max(self._guests) + 1
        self._add(newcomer, _Guest(origin=origin, claim=claim, moved_at=now))
        victim = self._guests[self._victim(now)]
        self.leave(newcomer)
        return victim.moved_at if victim.claim is claim else -math.inf

    def change(self, number: int, claim: Claim) -> None:
        """Update how well a guest's origin is known. Do nothing if the guest is not there."""
        if (guest := self._guests.get(number)) is not None:
            self.leave(number)
            self._add(number, _Guest(origin=guest.origin, claim=claim, moved_at=guest.moved_at))

    def note_progress(self, number: int, now: float) -> None:
        """Note that the guest made progress."""
        if (guest := self._guests.get(number)) is not None:
            guest.moved_at = now

    def leave(self, number: int) -> None:
        """Remove the guest. Do nothing if it is not there."""
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
        """Return the longest idle guest of the origins with the most places, in the class that has too many.

        Guests that are kept are chosen only if there are no others.
        """
        known = self._unknown <= self.size // 2
        those = [(number, guest) for number, guest in self._guests.items() if guest.claim.is_known is known]
        those = [one for one in those if not self._is_kept(one[1], now)] or those
        most = max(self._places[known, guest.origin] for _, guest in those)
        return min((guest.moved_at, number) for number, guest in those if self._places[known, guest.origin] == most)[1]

    def _is_kept(self, guest: _Guest, now: float) -> bool:
        return guest.claim is Claim.AWAITED and now < guest.moved_at + self.kept_s
