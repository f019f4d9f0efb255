"""Define the answers to a request for a port, whichever protocol carried it.

Invariants:

- A `Granted` names an address that others could dial: the host is one machine, and the port is not 0.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import Enum

from swarm.libp2p.sockets.addresses import Address

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class MappedBy(Enum):
    """The protocols by which we ask a gateway."""

    PCP = "PCP"
    NAT_PMP = "NAT-PMP"
    UPNP = "UPnP"


class BadDatagram(ValueError):
    """The datagram is no answer of the protocol. The message says what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Granted:
    """The gateway forwards connections from `external` to us, for `lifetime_s` from now."""

    external: Address
    lifetime_s: float

    def __post_init__(self) -> None:
        if why := why_no_external(ipaddress.ip_address(self.external.host), self.external.port):
            raise ValueError(why)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The gateway answered, and granted nothing."""

    why: str
    is_conflict: bool = False
    """Whether the gateway may grant another external port."""
    wait_s: float = 0.0
    """Seconds for which the gateway wants no further request."""


@dataclass(frozen=True, kw_only=True)
class NoAnswer:
    """The gateway did not answer."""

    why: str


Answer = Granted | Refused | NoAnswer


def why_no_external(host: IPAddress, port: int) -> str:
    """Return why no connection can come to that address from outside, as a clause; empty if one may."""
    if port == 0:
        return "others cannot dial port 0"
    if host.is_unspecified or host.is_loopback or host.is_multicast or host.is_link_local:
        return f"others cannot dial {host}"
    if host == ipaddress.IPv4Address("255.255.255.255"):
        return f"{host} is the broadcast address"
    return ""
