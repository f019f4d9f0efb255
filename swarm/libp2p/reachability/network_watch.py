"""Notice that this machine slept, or that its network has changed.

    looked at the clocks and interfaces --> same as before | slept | moved

A sleeping machine stops the monotonic clock and not the wall clock. On Windows both go on, and so they do if only this
process was stopped: then the check itself comes late. If somebody sets the clock, or the machine is too busy to check,
that counts as sleep too. The reaction (to check everything again) does no harm. A pure core.

Invariants:

- Each change is reported once.
- A clock that is slewed, as time servers do, never counts as sleep.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

import psutil

LOOK_S = 4.0
"""Seconds between checks, so that a change and its consequences are noticed within ten seconds."""

SLEPT_S = 10.0
"""Seconds by which the wall clock must run ahead between two checks, or the later check be late."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface
"""One of our addresses, with the network that it is in."""


class Change(Enum):
    """What happened since the last check."""

    NOTHING = "nothing"
    SLEPT = "slept"
    MOVED = "moved"
    """An interface came, went, or has another address."""


@dataclass(kw_only=True)
class NetworkWatch:
    """Remember the interfaces and clocks of the last check, and compare the next one with them."""

    interfaces: frozenset[Interface]
    monotonic_s: float
    wall_s: float

    @property
    def networks(self) -> frozenset[Network]:
        """The networks that this machine is on."""
        return frozenset(one.network for one in self.interfaces)

    def look(self, interfaces: frozenset[Interface], monotonic_s: float, wall_s: float) -> Change:
        """Compare with the last check; return what changed."""
        elapsed_s = monotonic_s - self.monotonic_s
        ahead_s, late_s = (wall_s - self.wall_s) - elapsed_s, elapsed_s - LOOK_S
        moved, self.interfaces = interfaces != self.interfaces, interfaces
        self.monotonic_s, self.wall_s = monotonic_s, wall_s
        if moved:
            return Change.MOVED
        return Change.SLEPT if max(ahead_s, late_s) > SLEPT_S else Change.NOTHING


def own_interfaces() -> frozenset[Interface]:
    """Return our interfaces' addresses. Link-local ones are left out: every interface has one."""
    found: set[Interface] = set()
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            with suppress(ValueError):  # a hardware address, or a link-local one with a scope
                interface = ipaddress.ip_interface(f"{entry.address}/{_prefix_bits(entry.netmask)}")
                if not interface.is_link_local:
                    found.add(interface)
    return frozenset(found)


def own_hosts() -> frozenset[str]:
    """Return our interfaces' addresses as sockets report them; link-local ones without their scope."""
    return frozenset(entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries)


def _prefix_bits(netmask: str | None) -> int:
    """Return the prefix length of a netmask; IPv6 netmasks come as addresses. Raises ValueError."""
    if netmask is None:
        raise ValueError("no netmask")
    return int(ipaddress.ip_address(netmask)).bit_count()
