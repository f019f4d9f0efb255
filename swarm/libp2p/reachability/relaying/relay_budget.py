"""Decide which reservations and circuits a relay grants: a bounded number in all, for each peer, and for each origin.

    peer --reserved--> may be reached --expired, gone--> (nothing)
    pair --opened--> circuit --closed--> (nothing)

A peer that wants to be reached through this relay holds a reservation. A circuit joins a stream of the peer that wants
to reach it with one to it. Both are for members only. A pure core; times are in seconds, monotonic.
Specification: https://github.com/libp2p/specs/blob/master/relay/circuit-v2.md.

Invariants:

- No peer has more than one reservation, and none has one that its relay did not grant or that has expired.
- A peer that renews its reservation, as all do before it ends, takes no further place.
- No peer is at either end of more than `circuits_of_peer` circuits, nor are there more than `circuits` in all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import IntEnum

from protocol.core.ids import PeerId


class Status(IntEnum):
    """A relay's answers, by their numbers on the wire."""

    OK = 100
    RESERVATION_REFUSED = 200
    RESOURCE_LIMIT_EXCEEDED = 201
    PERMISSION_DENIED = 202
    CONNECTION_FAILED = 203
    NO_RESERVATION = 204
    MALFORMED_MESSAGE = 400
    UNEXPECTED_MESSAGE = 401


@dataclass(frozen=True, kw_only=True)
class RelayLimits:
    """The limits of one relay."""

    reservations: int = 1024
    """In all: as many as there may be members' connections. One costs a hundred bytes."""
    reservations_of_origin: int = 128
    """From one IPv4 address, or one /64 of IPv6: a laboratory behind one router."""
    reservation_s: float = 3600.0
    """Seconds that a reservation lasts, as in other implementations."""
    circuits: int = 128
    """At a time. Each takes two streams and as many tasks."""
    circuits_of_peer: int = 16
    """At a time, at either end. A node punches at most so many holes at once."""
    circuit_s: float = 60.0
    """Seconds that a circuit lasts. An introduction takes two seconds, or ten with three tries."""
    circuit_bytes: int = 64 * 1024
    """Bytes each way. An introduction takes 8 KiB. A chunk has more, so that nobody moves chunks this way."""
    allows_bulk: bool = False
    """If true, neither time nor bytes end a circuit, and its ends may use it as a connection."""


@dataclass(frozen=True, kw_only=True)
class _Reservation:
    origin: str
    expires_s: float


@dataclass(kw_only=True)
class RelayBudget:
    """Grant reservations and circuits within `limits`."""

    limits: RelayLimits = field(default_factory=RelayLimits)
    _reservations: dict[PeerId, _Reservation] = field(default_factory=dict)
    _circuits: Counter[PeerId] = field(default_factory=Counter)
    """Circuits by peer, at either end."""
    _num_circuits: int = 0

    @property
    def num_circuits(self) -> int:
        return self._num_circuits

    def reserve(self, peer: PeerId, origin: str, now: float) -> Status:
        """Grant a member at `origin` a reservation until `limits.reservation_s` from now, or refuse it."""
        self._expire(now)
        others = [one for holder, one in self._reservations.items() if holder != peer]
        of_origin = sum(one.origin == origin for one in others)
        if len(others) >= self.limits.reservations or of_origin >= self.limits.reservations_of_origin:
            return Status.RESERVATION_REFUSED
        self._reservations[peer] = _Reservation(origin=origin, expires_s=now + self.limits.reservation_s)
        return Status.OK

    def forget(self, peer: PeerId) -> None:
        """Forget a peer that is gone, and its reservation."""
        self._reservations.pop(peer, None)

    def is_reserved(self, peer: PeerId, now: float) -> bool:
        """Return whether the peer may be reached through us."""
        one = self._reservations.get(peer)
        return one is not None and one.expires_s > now

    def open_circuit(self, source: PeerId, target: PeerId, now: float) -> Status:
        """Grant a member a circuit to `target`, or refuse it. The caller must `close_circuit` a granted one."""
        if not self.is_reserved(target, now):
            return Status.NO_RESERVATION
        if self._num_circuits >= self.limits.circuits or any(
            self._circuits[peer] >= self.limits.circuits_of_peer for peer in (source, target)
        ):
            return Status.RESOURCE_LIMIT_EXCEEDED
        self._circuits.update([source, target])
        self._num_circuits += 1
        return Status.OK

    def close_circuit(self, source: PeerId, target: PeerId) -> None:
        """Free a granted circuit that is over."""
        self._num_circuits -= 1
        for peer in (source, target):
            self._circuits[peer] -= 1
            if not self._circuits[peer]:
                del self._circuits[peer]

    def _expire(self, now: float) -> None:
        gone = [peer for peer, one in self._reservations.items() if one.expires_s <= now]
        for peer in gone:
            self.forget(peer)
