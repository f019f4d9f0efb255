"""Decide who leaves a room with few places when it is full, so that newcomers always get in.

Used for handshakes in progress and for connections of strangers. A newcomer always gets in, so nobody can shut the door
by occupying all places. The holder that leaves is the longest idle of the origin with the most places: one address with
300 connections displaces only its own. Among many addresses with one connection each, the one without progress for
longest leaves, and a dialler makes progress with every round trip.

An origin is an IPv4 address, or the first 64 bits of an IPv6 address. Origins where members were before are known.
Strangers of unknown origins have at most half of the places while known ones ask for more. Some known origins are
awaited, because work waits for them: these keep their place for `kept_s`.

A pure core.

Invariants:

- At most `size` holders are in the room after each call.
- Only an origin with as many places as any other of its class loses one.
- No known holder leaves while unknown ones have more than half of the places.
- No awaited holder that made progress within `kept_s` leaves while there is any other holder of its class.
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
    """The class of a holder, by how well we know its origin."""

    UNKNOWN = "unknown"
    KNOWN = "known"
    AWAITED = "awaited"

    @property
    def is_known(self) -> bool:
        """Return whether members were there before."""
        return self is not Claim.UNKNOWN


@dataclass(kw_only=True)
class _Holder:
    origin: str
    claim: Claim
    moved_at: float


@dataclass(kw_only=True)
class FairRoom:
    """Assign places. `size`: most holders at once; `kept_s`: seconds that awaited holders are kept; monotonic
    seconds."""

    size: int
    kept_s: float
    _holders: dict[int, _Holder] = field(default_factory=dict)
    _places: Counter[tuple[bool, str]] = field(default_factory=Counter)
    _unknown: int = 0

    def __len__(self) -> int:
        return len(self._holders)

    def __contains__(self, number: int) -> bool:
        return number in self._holders

    def enter(self, number: int, origin: str, now: float, claim: Claim) -> int | None:
        """Let in holder `number`; return the number of the holder that leaves instead, if the room was full."""
        self._add(number, _Holder(origin=origin, claim=claim, moved_at=now))
        if len(self._holders) <= self.size:
            return None
        victim = self._victim(now)
        self.leave(victim)
        return victim

    def since(self, origin: str, now: float, claim: Claim) -> float:
        """Return since when the holder that would leave for such a newcomer has made no progress.

        Minus infinity if nobody would leave, or a holder of another claim; `now` if it would be the newcomer itself.
        """
        if len(self._holders) < self.size:
            return -math.inf
        newcomer = max(self._holders) + 1
        self._add(newcomer, _Holder(origin=origin, claim=claim, moved_at=now))
        victim = self._holders[self._victim(now)]
        self.leave(newcomer)
        return victim.moved_at if victim.claim is claim else -math.inf

    def change(self, number: int, claim: Claim) -> None:
        """Update how well a holder's origin is known. Do nothing if the holder is not there."""
        if (holder := self._holders.get(number)) is not None:
            self.leave(number)
            self._add(number, _Holder(origin=holder.origin, claim=claim, moved_at=holder.moved_at))

    def note_progress(self, number: int, now: float) -> None:
        """Note that the holder made progress."""
        if (holder := self._holders.get(number)) is not None:
            holder.moved_at = now

    def leave(self, number: int) -> None:
        """Remove the holder. Do nothing if it is not there."""
        if (holder := self._holders.pop(number, None)) is None:
            return
        place = holder.claim.is_known, holder.origin
        self._places[place] -= 1
        if not self._places[place]:
            del self._places[place]
        self._unknown -= not holder.claim.is_known

    def _add(self, number: int, holder: _Holder) -> None:
        self._holders[number] = holder
        self._places[holder.claim.is_known, holder.origin] += 1
        self._unknown += not holder.claim.is_known

    def _victim(self, now: float) -> int:
        """Return the longest idle holder of the origins with the most places, in the class that has too many.

        Guests that are kept are chosen only if there are no others.
        """
        known = self._unknown <= self.size // 2
        those = [(number, holder) for number, holder in self._holders.items() if holder.claim.is_known is known]
        those = [one for one in those if not self._is_kept(one[1], now)] or those
        most = max(self._places[known, holder.origin] for _, holder in those)
        return min((holder.moved_at, number) for number, holder in those if self._places[known, holder.origin] == most)[
            1
        ]

    def _is_kept(self, holder: _Holder, now: float) -> bool:
        return holder.claim is Claim.AWAITED and now < holder.moved_at + self.kept_s
