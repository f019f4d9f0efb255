"""Which addresses that somebody else named may be dialled, and which of ours are worth naming.

A stranger who names addresses of our own network, or of this machine, would have us knock at doors inside that he
cannot reach himself. So what lies inside is dialled only where we are on the same network. A pure core.

Specification of what is global: the IANA registries of special-purpose addresses (RFC 6890).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from swarm.libp2p.sockets.addresses import Address

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SHARED = ipaddress.IPv4Network("100.64.0.0/10")
"""Between a provider and its customers, behind a router of the provider's (RFC 6598): "carrier grade NAT"."""


def is_public(address: Address) -> bool:
    """Whether the address may be anywhere in the internet: not private, of one link, of documentation, of many."""
    if not address.kind.startswith("ip") or address.port == 0:
        return False
    ip = ipaddress.ip_address(address.host)
    return ip.is_global and not ip.is_multicast


def is_private(address: Address) -> bool:
    """Whether the address is one of a home's or a company's own network (RFC 1918, RFC 4193)."""
    if not address.kind.startswith("ip") or address.port == 0:
        return False
    ip = ipaddress.ip_address(address.host)
    return ip.is_private and not (ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast)


def is_loopback(address: Address) -> bool:
    """Whether the address is this machine itself, for whoever dials it."""
    return address.kind.startswith("ip") and ipaddress.ip_address(address.host).is_loopback


def shares_network(address: Address, networks: Iterable[Network]) -> bool:
    """Whether one of our interfaces is on the same network."""
    ip = ipaddress.ip_address(address.host)
    return any(ip.version == network.version and ip in network for network in networks)


def may_dial(address: Address, networks: Iterable[Network]) -> bool:
    """Whether an address that a stranger named may be dialled from here."""
    return is_public(address) or (is_private(address) and shares_network(address, networks))
