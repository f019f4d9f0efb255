"""Limits how often something may happen: so many at once, and then so many a second.

A pure core. Where a peer does something too often, whoever reads from it waits before reading on: back-pressure slows
the peer down, loses nothing, and an honest peer that had a burst notices nothing but that.

Invariants:
- In any stretch of `t` seconds at most `burst + per_s * t` units pass without waiting.
- A bucket that was left alone for `burst / per_s` seconds is as good as new.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """`burst` units at once, and `per_s` a second in the long run."""

    per_s: float
    burst: float


@dataclass(kw_only=True)
class Bucket:
    """What one peer, or a group of peers, has left of a rate. A new one is full."""

    rate: Rate
    _spent: float = 0.0
    _at: float = 0.0

    def charge(self, cost: float, now: float) -> float:
        """Spend `cost` units at time `now` (seconds, never going back); return how long to wait before the next."""
        self._refill(now)
        self._spent += cost
        return max(0.0, (self._spent - self.rate.burst) / self.rate.per_s)

    def admit(self, now: float, cost: float = 1.0) -> bool:
        """Spend `cost` units if that many are left; else spend nothing, and return False."""
        self._refill(now)
        if self._spent + cost > self.rate.burst:
            return False
        self._spent += cost
        return True

    def has_room(self, now: float, cost: float = 1.0) -> bool:
        """Whether `admit` would spend so much."""
        self._refill(now)
        return self._spent + cost <= self.rate.burst

    def is_full(self, now: float) -> bool:
        """Whether nothing is spent, so that a new bucket would do as well."""
        self._refill(now)
        return not self._spent

    def _refill(self, now: float) -> None:
        self._spent = max(0.0, self._spent - (now - self._at) * self.rate.per_s)
        self._at = now


@dataclass(kw_only=True)
class Buckets(Generic[Key]):
    """A bucket for each key. At most `most` are remembered; then the one that was used longest ago is forgotten.

    Forgetting favours whoever it was: with more than `most` keys at once each has a full burst now and then. Callers
    that must hold against many keys have one more bucket for all of them.
    """

    rate: Rate
    most: int = 4096
    _buckets: OrderedDict[Key, Bucket] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._buckets)

    def of(self, key: Key) -> Bucket:
        """Return the bucket of `key`."""
        if (bucket := self._buckets.get(key)) is None:
            bucket = self._buckets[key] = Bucket(rate=self.rate)
            if len(self._buckets) > self.most:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
        return bucket


@dataclass(kw_only=True)
class Graded(Generic[Key]):
    """A rate for each member, a lower one for each stranger, and one for all strangers together."""

    member: Rate
    stranger: Rate
    strangers: Rate
    _members: Buckets[Key] = field(init=False)
    _strangers: Buckets[Key] = field(init=False)
    _together: Bucket = field(init=False)

    def __post_init__(self) -> None:
        self._members, self._strangers = Buckets(rate=self.member), Buckets(rate=self.stranger)
        self._together = Bucket(rate=self.strangers)

    def admit(self, peer: Key, now: float, *, is_member: bool) -> bool:
        """Count one thing that `peer` did, if it need not wait; else count nothing, and return False."""
        if is_member:
            return self._members.of(peer).admit(now)
        own = self._strangers.of(peer)
        return own.has_room(now) and self._together.admit(now) and own.admit(now)

    def charge(self, peer: Key, now: float, *, is_member: bool) -> float:
        """Count one thing that `peer` did; return how long to wait before it may do the next."""
        if is_member:
            return self._members.of(peer).charge(1.0, now)
        return max(self._strangers.of(peer).charge(1.0, now), self._together.charge(1.0, now))
