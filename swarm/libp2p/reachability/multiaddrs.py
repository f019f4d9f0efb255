"""Convert addresses from and to the bytes of multiaddrs, as other libp2p implementations write them.

Invariants:

- An address that a peer sent can be dialled, or is left out.
- The result names a place, without the peer that is there. Some implementations write the peer behind it and others do
  not, and two that see us at one place must agree.
- Peers are not blamed for addresses of transports that we do not know.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from multiaddr import Multiaddr  # type: ignore[import-untyped]

from swarm.libp2p.sockets.addresses import Address, BadAddress, parse_address

MAX_MULTIADDR_BYTES = 512
"""Bytes of one address: a name of 253 letters and a peer id take less."""


def to_bytes(address: str) -> bytes:
    """Return the bytes of one of our addresses."""
    data: bytes = Multiaddr(address).to_bytes()
    return data


def from_bytes(addresses: Iterable[bytes], at_most: int) -> list[Address]:
    """Return the first `at_most` of a peer's addresses that are TCP over IPv4 or IPv6, each once."""
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
    except (BadAddress, ValueError, LookupError):  # the library raises ValueErrors, or LookupError for unknown codes
        return None
    return replace(address, peer=None) if address.kind.startswith("ip") else None
