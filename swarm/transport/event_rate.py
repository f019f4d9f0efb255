"""Limit how often something may happen: a burst at once, and then a number per second.

If a peer does something too often, its reader waits before it reads on. This back-pressure slows the peer down and
loses nothing; an honest peer after a burst notices only a delay.

Invariants:

- In any interval of `t` seconds at most `burst + per_s * t` units pass without waiting.
- A bucket that was not used for `burst / per_s` seconds is like a new one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A limit: `burst` units at once, and `per_s` units per second in the long run."""

    per_s: float
    burst: float


@dataclass(kw_only=True)
class Bucket:
    """The units of a rate that one peer, or a group of peers, has left. A new bucket is full."""

    rate: Rate
    _spent: float = 0.0
    _at: float = 0.0

    def charge(self, cost: float, now: float) -> float:
        """Spend `cost` units at time `now` (seconds, never decreasing). Return the seconds to wait before the next."""
        self._refill(now)
        self._spent += cost
        return max(0.0, (self._spent - self.rate.burst) / self.rate.per_s)

    def admit(self, now: float, cost: float = 1.0) -> bool:
        """Spend `cost` units if that many are left; otherwise spend nothing and return False."""
        self._refill(now)
        if self._spent + cost > self.rate.burst:
            return False
        self._spent += cost
        return True

    def has_room(self, now: float, cost: float = 1.0) -> bool:
        """Return whether `admit` would spend `cost` units."""
        self._refill(now)
        return self._spent + cost <= self.rate.burst

    def is_full(self, now: float) -> bool:
        """Return whether nothing is spent, so that a new bucket could replace this one."""
        self._refill(now)
        return not self._spent

    def _refill(self, now: float) -> None:
        self._spent = max(0.0, self._spent - (now - self._at) * self.rate.per_s)
        self._at = now


@dataclass(kw_only=True)
class Buckets(Generic[Key]):
    """A bucket for each key. At most `most` are kept; then the least recently used one is forgotten.

    A forgotten key gets a full burst again: with more than `most` keys at once, each has one now and then. Callers that
    must limit many keys need one more bucket for all of them.
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
        """Count one action of `peer` if it need not wait; otherwise count nothing and return False."""
        if is_member:
            return self._members.of(peer).admit(now)
        own = self._strangers.of(peer)
        return own.has_room(now) and self._together.admit(now) and own.admit(now)

    def charge(self, peer: Key, now: float, *, is_member: bool) -> float:
        """Count one action of `peer`. Return the seconds to wait before its next one."""
        if is_member:
            return self._members.of(peer).charge(1.0, now)
        return max(self._strangers.of(peer).charge(1.0, now), self._together.charge(1.0, now))
