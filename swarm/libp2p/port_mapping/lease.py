"""Decide when one mapping is asked for, renewed, called lost, asked for again, and given back.

    WAITING --its time came--> ASKED --granted--> GRANTED --half its life is over--> RENEWING --granted--> GRANTED
    ASKED --refused, or silence--> WAITING, longer each time
    GRANTED --forgotten, or over--> WAITING
    RENEWING --refused--> WAITING; --silence--> GRANTED while it lasts, unless we doubt it
    any --the end--> RETURNED

A pure core: an event and the time in, effects out. Times are in seconds. A clock that goes back counts as standing
still.

Specifications: RFC 6887 section 11.2.1 (renewal), RFC 6886 section 3.3 and 3.7 (renewal, loss).

Invariants:

- At most one request is open, and every `Ask` is answered by one event before the next.
- An address is reported with `Mapped` before it is withdrawn with `Lost`, and `until_s` is never passed.
- Requests are MIN_PAUSE_S apart, except for at most MAX_PORTS_TRIED in a row when external ports are taken.
- After the end nothing is asked for. A mapping that may exist at the gateway is given back once.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field, replace
from enum import Enum

from swarm.libp2p.port_mapping.outcomes import Answer, Granted, NoAnswer, Refused
from swarm.libp2p.sockets.addresses import Address

LIFETIME_S = 1200
"""Seconds that we ask for. A node that dies leaves its mapping for at most twenty minutes; RFC 6886 suggests two hours.
"""

MAX_LIFETIME_S = 86400.0
"""Seconds. A longer lifetime is not believed: routers restart."""

MIN_PAUSE_S = 4.0
"""Seconds. RFC 6887 section 11.2.1: requests for one mapping are no closer."""

MIN_LIFETIME_S = 10.0
"""Seconds. A shorter lifetime cannot be renewed in time, and an address that comes and goes is useless. RFC 6887
recommends 120 s."""

FIRST_RETRY_S, MAX_RETRY_S = 10.0, 900.0
"""Seconds from a refusal to the next request, doubled each time: the owner may be configuring the router just now."""

MAX_WAIT_S = 1800.0
"""Seconds up to which a router's own wish for a pause is respected."""

MAX_PORTS_TRIED = 8
"""External ports that are asked for in a row when others have them."""

RECOVERY_S = 5.0
"""Seconds. Clients of a router that restarted ask it within this time, each at a random moment (RFC 6887 14.1.3)."""

FIRST_RANDOM_PORT = 10_000
"""Other external ports are chosen at random from here up: registered ports, and those that games use, are lower."""


class Standing(Enum):
    """The state of a mapping."""

    WAITING = "waiting"
    ASKED = "asked"
    GRANTED = "granted"
    RENEWING = "renewing"
    RETURNED = "returned"


@dataclass(frozen=True, kw_only=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, kw_only=True)
class Forgot:
    """The gateway no longer has the mapping."""

    why: str


@dataclass(frozen=True, kw_only=True)
class Moved:
    """The gateway still has the mapping, and another external address."""

    host: str


@dataclass(frozen=True, kw_only=True)
class LookAgain:
    """The network may have changed: a granted mapping is doubtful, and a refused one may be granted now."""


@dataclass(frozen=True, kw_only=True)
class End:
    """The node no longer needs the port."""


Event = Tick | Answer | Forgot | Moved | LookAgain | End


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Ask the gateway for the port, and report its answer."""

    external_port: int
    renews: bool
    """Whether to ask by the protocol that granted the mapping. Otherwise all are tried."""


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """Others can dial the address until then."""

    external: Address
    until_s: float
    is_news: bool
    """Whether it is another address than before, or the first."""


@dataclass(frozen=True, kw_only=True)
class Lost:
    """Others can no longer dial the mapped address."""

    why: str
    is_wanted: bool = False
    """Whether it is given back on purpose."""


@dataclass(frozen=True, kw_only=True)
class Failed:
    """There is no mapping, and it is asked for again after `again_s`."""

    why: str
    again_s: float


@dataclass(frozen=True, kw_only=True)
class ReleaseMapping:
    """Tell the gateway that it may forget the mapping."""


Effect = Ask | Mapped | Lost | Failed | ReleaseMapping


@dataclass(kw_only=True)
class MappingLease:
    """One internal port at one gateway, from the first request until it is given back."""

    internal_port: int
    rng: random.Random
    standing: Standing = Standing.WAITING
    external: Address | None = None
    until_s: float = math.inf
    _due_s: float = -math.inf
    """When the next request is to be sent."""
    _asked_s: float = -math.inf
    _now: float = -math.inf
    _failures: int = 0
    _num_tried: int = 0
    """External ports in this row that others had."""
    _wanted_port: int = field(init=False)
    _is_uncertain: bool = False

    def __post_init__(self) -> None:
        self._wanted_port = self.internal_port

    def next_s(self) -> float:
        """Return when a `Tick` is due; infinity while an answer is awaited, and after the end."""
        match self.standing:
            case Standing.WAITING:
                return self._due_s
            case Standing.GRANTED:
                return min(self._due_s, self.until_s)
            case _:
                return math.inf

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take an event; return the effects. An `Ask` is the last of them."""
        self._now = max(self._now, now)
        if self.standing is Standing.RETURNED:
            return []
        match event:
            case End():
                return self._end()
            case LookAgain():
                self._hurry()
                return self._tick()
            case Forgot(why=why) if self.standing is Standing.GRANTED:
                return [*self._lose(why), *self._wait(self.rng.uniform(0.0, RECOVERY_S))]
            case Moved(host=host) if self.external is not None and self._now < self.until_s:
                return self._move(replace(self.external, host=host))
            case Granted() | Refused() | NoAnswer() if self.standing in (Standing.ASKED, Standing.RENEWING):
                return self._answered(event)
            case _:
                return self._tick()

    def _tick(self) -> list[Effect]:
        if self.standing is Standing.GRANTED and self._now >= self.until_s:
            return [*self._lose("it was not renewed in time"), *self._wait(0.0), *self._tick()]
        if self.standing not in (Standing.WAITING, Standing.GRANTED) or self._now < self._due_s:
            return []
        return self._ask()

    def _ask(self) -> list[Effect]:
        renews = self.standing in (Standing.GRANTED, Standing.RENEWING)
        self.standing = Standing.RENEWING if renews else Standing.ASKED
        self._asked_s = self._now
        return [Ask(external_port=self._wanted_port, renews=renews)]

    def _answered(self, answer: Answer) -> list[Effect]:
        match answer:
            case Granted(external=external, lifetime_s=lifetime_s) if lifetime_s >= MIN_LIFETIME_S:
                return self._grant(external, min(lifetime_s, MAX_LIFETIME_S))
            case Granted(lifetime_s=lifetime_s):
                return self._fail(f"the router grants it for {lifetime_s:.0f} s only", 0.0)
            case Refused(why=why, is_conflict=True) if self._num_tried + 1 < MAX_PORTS_TRIED:
                lost = self._lose(why)
                self._num_tried += 1
                self._wanted_port = self.rng.randrange(FIRST_RANDOM_PORT, 65536)
                self.standing = Standing.WAITING
                return [*lost, *self._ask()]
            case Refused(why=why, wait_s=wait_s):
                return self._fail(why, wait_s)
            case NoAnswer(why=why) if self.standing is Standing.RENEWING and not self._is_uncertain:
                if self._now >= self.until_s:
                    return self._fail(why, 0.0)
                self.standing = Standing.GRANTED
                self._due_s = self._now + max((self.until_s - self._now) / 2, MIN_PAUSE_S)
                return []
            case NoAnswer(why=why):
                return self._fail(why, 0.0)

    def _grant(self, external: Address, lifetime_s: float) -> list[Effect]:
        is_news = external != self.external
        self.standing, self.external, self.until_s = Standing.GRANTED, external, self._now + lifetime_s
        self._due_s = self._now + max(lifetime_s / 2, MIN_PAUSE_S)
        self._failures = self._num_tried = 0
        self._is_uncertain = False
        self._wanted_port = external.port
        return [Mapped(external=external, until_s=self.until_s, is_news=is_news)]

    def _move(self, external: Address) -> list[Effect]:
        if external == self.external:
            return []
        self.external = external
        return [Mapped(external=external, until_s=self.until_s, is_news=True)]

    def _fail(self, why: str, wait_s: float) -> list[Effect]:
        """Handle a refusal: ask again after a while, or soon if a mapping was lost just now."""
        lost = self._lose(why)
        if lost:
            return [*lost, *self._wait(min(wait_s, MAX_WAIT_S))]
        pause_s = min(FIRST_RETRY_S * 2.0**self._failures, MAX_RETRY_S)
        self._failures = min(self._failures + 1, 16)
        self._num_tried = 0
        again_s = max(pause_s, min(wait_s, MAX_WAIT_S))
        return [*self._wait(again_s), Failed(why=why, again_s=again_s)]

    def _lose(self, why: str) -> list[Effect]:
        had, self.external, self.until_s, self._is_uncertain = self.external, None, math.inf, False
        return [Lost(why=why)] if had is not None else []

    def _wait(self, pause_s: float) -> list[Effect]:
        self.standing = Standing.WAITING
        self._due_s = max(self._now + pause_s, self._asked_s + MIN_PAUSE_S)
        return []

    def _hurry(self) -> None:
        if self.standing is Standing.WAITING:
            self._failures = 0
        elif self.standing in (Standing.GRANTED, Standing.RENEWING):
            self._is_uncertain = True
        self._due_s = min(self._due_s, max(self._now, self._asked_s + MIN_PAUSE_S))

    def _end(self) -> list[Effect]:
        may_exist = self.standing is not Standing.WAITING
        self.standing, self._due_s = Standing.RETURNED, math.inf
        had, self.external = self.external, None
        lost = [Lost(why="this node no longer needs it", is_wanted=True)] if had is not None else []
        return [*lost, *([ReleaseMapping()] if may_exist else [])]
