"""Track addresses at which others may reach this node: how each is known, since when, and the result of trying it.

    offered (by an interface, the operator, a router, or as others see us) --dialled back--> reachable | unreachable
    no longer offered --> forgotten

A pure core; times are in seconds, monotonic.

Invariants:

- An address is reachable only if a dial back arrived at it since it was last offered again. One peer's dial is enough,
  since the number that it brought is the proof.
- An address is unreachable only by the claims of FAILED_BY origins, or of all that can be asked, and for at most
  RETRY_S.
- Addresses that were never tried are tried next, then those tried longest ago.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from swarm.libp2p.reachability.autonat.client import Word
from swarm.libp2p.sockets.addresses import Address

FAILED_BY = 2
"""Origins whose dials must fail. One of them may be cut off from us, or lie."""

AGAIN_S = 900.0
"""Seconds after which a verdict is checked again while nothing changes: routers forget, and providers change addresses.
"""

RETRY_S = 120.0
"""The same for an address that was not reached: its owner may be opening the router just now."""


class Source(Enum):
    """How an address is known."""

    ANNOUNCED = "announced"
    """The owner configured it."""
    INTERFACE = "interface"
    """One of our interfaces has it."""
    MAPPED = "mapped"
    """A router gave it to us."""
    OBSERVED = "observed"
    """Others see us there."""


class Standing(Enum):
    """The result of trying an address."""

    UNTRIED = "untried"
    REACHABLE = "reachable"
    UNREACHABLE = "unreachable"


@dataclass(kw_only=True)
class OwnAddress:
    """One address, and what is known of it."""

    address: Address
    sources: set[Source]
    since_s: float
    standing: Standing = Standing.UNTRIED
    tried_s: float = -math.inf
    failed_by: set[str] = field(default_factory=set)
    """Origins whose dials failed since the last one that came through."""

    def forget(self, now: float) -> None:
        """Drop the results of trying it: they may be wrong from `now` on."""
        self.standing, self.tried_s, self.since_s = Standing.UNTRIED, -math.inf, now
        self.failed_by.clear()


@dataclass(kw_only=True)
class OwnAddresses:
    """Keep all our addresses, and decide which one to try next."""

    _known: dict[Address, OwnAddress] = field(default_factory=dict)

    def offer(self, source: Source, addresses: Iterable[Address], now: float) -> bool:
        """Replace the addresses that `source` knows by these; return whether that changed anything."""
        offered, changed = set(addresses), False
        for address, own in list(self._known.items()):
            if source in own.sources and address not in offered:
                own.sources.discard(source)
                changed = True
                if not own.sources:
                    del self._known[address]
        for address in offered:
            own = self._known.setdefault(address, OwnAddress(address=address, sources=set(), since_s=now))
            if source not in own.sources:
                changed = True
                own.sources.add(source)
                if own.standing is not Standing.REACHABLE:  # perhaps a router has just opened a port that others see
                    own.forget(now)
        return changed

    def hear(
        self, address: Address, word: Word, origin: str, num_origins: int, now: float, *, began_s: float = math.inf
    ) -> bool:
        """Note that a peer at `origin`, one of `num_origins` to ask, has tried an address from `began_s` on.

        Return whether that changed the result for the address.
        """
        own = self._known.get(address)
        if own is None or word is Word.NONE:
            return False
        if word is Word.NOT_REACHED and began_s < own.since_s:
            return False  # the address became known later, and may be reachable by now
        before, own.tried_s = own.standing, now
        if word is Word.REACHED:
            own.standing = Standing.REACHABLE
            own.failed_by.clear()
        else:
            own.failed_by.add(origin)
            if len(own.failed_by) >= min(FAILED_BY, num_origins):
                own.standing = Standing.UNREACHABLE
        return own.standing is not before

    def forget_verdicts(self) -> None:
        """Drop all results: the network has changed, and they may be wrong."""
        for own in self._known.values():
            own.forget(own.since_s)

    def due(self, now: float) -> list[Address]:
        """Return the addresses to try now, the most urgent first."""
        waiting = [own for own in self._known.values() if now - own.tried_s >= _retry_s(own)]
        return [own.address for own in sorted(waiting, key=lambda own: own.tried_s)]

    def next_due_s(self) -> float:
        """Return when the next address must be tried; infinity if there is none."""
        return min((own.tried_s + _retry_s(own) for own in self._known.values()), default=math.inf)

    def all(self) -> list[OwnAddress]:
        """Return all addresses, the reachable ones first."""
        return sorted(self._known.values(), key=lambda own: (own.standing is not Standing.REACHABLE, own.since_s))

    def reachable(self) -> list[OwnAddress]:
        """Return the addresses that a dial has reached."""
        return [own for own in self.all() if own.standing is Standing.REACHABLE]


def _retry_s(own: OwnAddress) -> float:
    """Return the seconds from one try to the next."""
    is_uncertain = own.failed_by and own.standing is not Standing.UNREACHABLE
    return 0.0 if is_uncertain else AGAIN_S if own.standing is Standing.REACHABLE else RETRY_S
