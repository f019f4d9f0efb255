"""Decide which addresses that a stranger named may be dialled, and which of ours are worth naming.

A stranger that names addresses of our own network, or of this machine, would make us knock at doors inside that it
cannot reach itself. So private addresses are dialled only if we are on the same network. A pure core.

Specification of global addresses: the IANA registries of special-purpose addresses (RFC 6890).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from swarm.libp2p.sockets.addresses import Address

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

SHARED = ipaddress.IPv4Network("100.64.0.0/10")
"""Addresses between a provider and its customers, behind a router of the provider (RFC 6598): "carrier grade NAT"."""


def is_public(address: Address) -> bool:
    """Return whether the address may be on the internet: not private, link-local, for documentation, or multicast."""
    if not address.kind.startswith("ip") or address.port == 0:
        return False
    ip = ipaddress.ip_address(address.host)
    return ip.is_global and not ip.is_multicast


def is_private(address: Address) -> bool:
    """Return whether the address is in a private network of a home or a company (RFC 1918, RFC 4193)."""
    if not address.kind.startswith("ip") or address.port == 0:
        return False
    ip = ipaddress.ip_address(address.host)
    return ip.is_private and not (ip.is_loopback or ip.is_link_local or ip.is_unspecified or ip.is_multicast)


def is_loopback(address: Address) -> bool:
    """Return whether the address means the dialling machine itself."""
    return address.kind.startswith("ip") and ipaddress.ip_address(address.host).is_loopback


def shares_network(address: Address, networks: Iterable[Network]) -> bool:
    """Return whether one of our interfaces is on the same network."""
    ip = ipaddress.ip_address(address.host)
    return any(ip.version == network.version and ip in network for network in networks)


def may_dial(address: Address, networks: Iterable[Network]) -> bool:
    """Return whether an address that a stranger named may be dialled from here."""
    return is_public(address) or (is_private(address) and shares_network(address, networks))
