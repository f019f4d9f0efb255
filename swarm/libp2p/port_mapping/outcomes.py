"""The answers that a request for a port may have, whichever protocol carried it.

Invariants:
- A `Granted` names an address that others could dial: a host that is one machine, and a port that is not 0.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from enum import Enum

from swarm.libp2p.sockets.addresses import Address

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


class MappedBy(Enum):
    """The protocols by which a gateway is asked."""

    PCP = "PCP"
    NAT_PMP = "NAT-PMP"
    UPNP = "UPnP"


class BadDatagram(ValueError):
    """The datagram is no answer of the protocol. The message says what is wrong with it."""


@dataclass(frozen=True, kw_only=True)
class Granted:
    """The gateway passes connections to `external` on to us, for `lifetime_s` from now."""

    external: Address
    lifetime_s: float

    def __post_init__(self) -> None:
        if why := why_no_external(ipaddress.ip_address(self.external.host), self.external.port):
            raise ValueError(why)


@dataclass(frozen=True, kw_only=True)
class Refused:
    """The gateway answered, and gave us nothing."""

    why: str
    is_conflict: bool = False
    """Whether another external port may be given."""
    wait_s: float = 0.0
    """For how long the gateway wants to hear no more of it."""


@dataclass(frozen=True, kw_only=True)
class Silent:
    """The gateway did not answer."""

    why: str


Answer = Granted | Refused | Silent


def why_no_external(host: IPAddress, port: int) -> str:
    """Return why no connection can come to that address from outside, as a clause; empty if one may."""
    if port == 0:
        return "port 0 is no port that others can dial"
    if host.is_unspecified or host.is_loopback or host.is_multicast or host.is_link_local:
        return f"{host} is no address that others can dial"
    if host == ipaddress.IPv4Address("255.255.255.255"):
        return f"{host} is the broadcast address"
    return ""
