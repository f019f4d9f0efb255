"""Notice that this machine slept, or that its network is another one now.

    looked at the clocks and interfaces --> same as before | slept | moved

A machine that sleeps stops the monotonic clock and not the wall's; on Windows both go on, and so they do where this
process alone was stopped: then the look itself comes late. A clock that somebody sets, or a machine that is too busy to
look, is taken for one that slept: what is done about it (look at everything again) does no harm. A pure core.

Invariants:
- What has changed is told once.
- A clock that is slewed, as time servers do, is never taken for sleep.
"""

from __future__ import annotations

import ipaddress
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

import psutil

LOOK_S = 4.0
"""Between looks, so that whatever happens is noticed within ten seconds with what follows from it."""

SLEPT_S = 10.0
"""By so much the wall's clock must run ahead between two looks, or the later one be late."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Interface = ipaddress.IPv4Interface | ipaddress.IPv6Interface
"""An address of ours, with the network that it is in."""


class Change(Enum):
    """What happened since the last look."""

    NOTHING = "nothing"
    SLEPT = "slept"
    MOVED = "moved"
    """An interface came, went, or has another address."""


@dataclass(kw_only=True)
class NetworkWatch:
    """See the module's paragraph: what the last look saw."""

    interfaces: frozenset[Interface]
    monotonic_s: float
    wall_s: float

    @property
    def networks(self) -> frozenset[Network]:
        """The networks that we are on."""
        return frozenset(one.network for one in self.interfaces)

    def look(self, interfaces: frozenset[Interface], monotonic_s: float, wall_s: float) -> Change:
        """Compare with the last look."""
        elapsed_s = monotonic_s - self.monotonic_s
        ahead_s, late_s = (wall_s - self.wall_s) - elapsed_s, elapsed_s - LOOK_S
        moved, self.interfaces = interfaces != self.interfaces, interfaces
        self.monotonic_s, self.wall_s = monotonic_s, wall_s
        if moved:
            return Change.MOVED
        return Change.SLEPT if max(ahead_s, late_s) > SLEPT_S else Change.NOTHING


def own_interfaces() -> frozenset[Interface]:
    """The addresses that our interfaces have now. Those of one link alone are left out: every interface has one."""
    found: set[Interface] = set()
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            with suppress(ValueError):  # a hardware address, or a link-local one with a scope
                interface = ipaddress.ip_interface(f"{entry.address}/{_prefix_bits(entry.netmask)}")
                if not interface.is_link_local:
                    found.add(interface)
    return frozenset(found)


def own_hosts() -> frozenset[str]:
    """The addresses that our interfaces have now, those of one link without their scope, as sockets tell them."""
    return frozenset(entry.address.partition("%")[0] for entries in psutil.net_if_addrs().values() for entry in entries)


def _prefix_bits(netmask: str | None) -> int:
    """How long a prefix a netmask stands for: IPv6 ones come as addresses. Raises ValueError."""
    if netmask is None:
        raise ValueError("no netmask")
    return int(ipaddress.ip_address(netmask)).bit_count()
