"""Addresses as other libp2p implementations write them: bytes of a multiaddr.

Invariants:
- What a peer sent is an address that we can dial, or is left out.
- It is a place, without the name of who is there. Some implementations write the name behind it and others do not, and
  two that see us at one place must agree.
- Nobody is blamed for addresses of transports that we do not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from multiaddr import Multiaddr  # type: ignore[import-untyped]

from swarm.libp2p.sockets.addresses import Address, BadAddress, parse_address

MAX_MULTIADDR_BYTES = 512
"""Of one address: a name of 253 letters and a peer's take less."""


def to_bytes(address: str) -> bytes:
    """The bytes of an address of ours."""
    data: bytes = Multiaddr(address).to_bytes()
    return data


def from_bytes(addresses: Iterable[bytes], at_most: int) -> list[Address]:
    """The first `at_most` of a peer's addresses that are TCP over IPv4 or IPv6, each once."""
    found: dict[Address, None] = {}
    for data in addresses:
        if len(found) < at_most and (address := _parse(data)) is not None:
            found[address] = None
    return list(found)


def _parse(data: bytes) -> Address | None:
    if len(data) > MAX_MULTIADDR_BYTES:
        return None
    try:
        address = parse_address(str(Multiaddr(data)))
    except (BadAddress, ValueError, LookupError):  # the library's own are all ValueErrors, or of codes unknown to it
        return None
    return replace(address, peer=None) if address.kind.startswith("ip") else None
