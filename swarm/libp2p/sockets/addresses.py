"""Parse and write the multiaddrs that we can listen on and dial: TCP over IPv4, IPv6 and DNS names, with a peer id.

    /ip4/192.0.2.7/tcp/4001/p2p/12D3KooW...    /ip6/::1/tcp/0    /dns/learner.example/tcp/4001/p2p/12D3KooW...

Invariants:

- An `Address` can be dialled as it stands, and its text form parses back to it.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import psutil

from protocol.core.ids import PeerId
from protocol.core.limits import MAX_ADDRESSES

HOST_KINDS = ("ip4", "ip6", "dns", "dns4", "dns6")

CIRCUIT = "p2p-circuit"
"""The part of an address between a relay and the peer that is reached through it."""

MAX_DNS_CHARS = 253
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")
"""A part of a name (RFC 1123; underscores occur). A name that is not ASCII is looked up in its IDNA form."""

BROADCAST = ipaddress.IPv4Address("255.255.255.255")


class BadAddress(ValueError):
    """The text is no address that we support. The message names it and says what is wrong."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """One TCP address, perhaps with the id of the peer that answers there."""

    kind: str
    host: str
    port: int
    peer: PeerId | None = None

    def __str__(self) -> str:
        suffix = f"/p2p/{self.peer}" if self.peer else ""
        return f"/{self.kind}/{self.host}/tcp/{self.port}{suffix}"

    @property
    def is_wildcard(self) -> bool:
        """Whether it stands for every interface."""
        return self.kind.startswith("ip") and ipaddress.ip_address(self.host).is_unspecified


@dataclass(frozen=True, kw_only=True)
class CircuitAddress:
    """A peer that is reached through a relay, which has an address of its own."""

    relay: Address
    peer: PeerId

    def __str__(self) -> str:
        return circuit_address(str(self.relay), self.peer)


def parse_address(text: str) -> Address:
    """Return the address. Raises BadAddress, which says what is wrong with the text."""
    match text.split("/"):
        case ["", kind, host, "tcp", port]:
            return _checked(text, kind, host, port, None)
        case ["", kind, host, "tcp", port, "p2p", peer] if peer:
            return _checked(text, kind, host, port, PeerId(peer))
        case _:
            raise BadAddress(f"{text!r} is not /ip4|ip6|dns/HOST/tcp/PORT[/p2p/PEER]")


def why_undialable(address: Address) -> str:
    """Return why nobody else can dial the address, as a clause; empty if somebody may."""
    if (why := why_no_host(address)) or address.port == 0:
        return why or "port 0 stands for any free port, and nobody can dial that"
    if address.is_wildcard:
        return f"{address.host} stands for every interface of a machine, and nobody can dial that"
    if address.kind == "ip6" and ipaddress.ip_address(address.host).is_link_local:
        return f"{address.host} is link-local: it means another link on each machine"
    return ""


def why_no_host(address: Address) -> str:
    """Return why no machine has the address, as a clause; empty if one may."""
    if not address.kind.startswith("ip"):
        return ""
    ip = ipaddress.ip_address(address.host)
    if ip.is_multicast:
        return f"{ip} is a multicast address, of many machines at once"
    if ip == BROADCAST:
        return f"{ip} is the broadcast address, of all machines at once"
    return ""


def parse_circuit(text: str) -> CircuitAddress:
    """Return the address of a peer behind a relay. Raises BadAddress."""
    match text.split("/"):
        case [*relay, "p2p", by, "p2p-circuit", "p2p", peer] if by and peer:
            return CircuitAddress(relay=parse_address("/".join([*relay, "p2p", by])), peer=PeerId(peer))
        case _:
            raise BadAddress(f"{text!r} is not RELAY/p2p/PEER/{CIRCUIT}/p2p/PEER")


def circuit_address(relay: str, peer: PeerId) -> str:
    """Return the address of a peer behind the relay at this address."""
    return f"{relay}/{CIRCUIT}/p2p/{peer}"


def is_circuit(address: str) -> bool:
    """Return whether an address leads through a relay."""
    return f"/{CIRCUIT}/" in address


def parse_dialable(texts: Sequence[str]) -> tuple[PeerId, list[Address | CircuitAddress]]:
    """Return the one peer that all `texts` name, and its addresses. Raises BadAddress."""
    addresses = [parse_circuit(text) if is_circuit(text) else parse_address(text) for text in texts]
    peers = {address.peer for address in addresses}
    match list(peers):
        case [None]:
            raise BadAddress(f"{texts[0]} does not end in /p2p/PEER, so the peer that answers could not be checked")
        case [peer]:
            return PeerId(str(peer)), addresses
        case []:
            raise BadAddress("there is no address to dial")
        case _:
            raise BadAddress(f"the addresses name more than one peer: {', '.join(texts)}")


def from_socket(sockname: Sequence[str | int]) -> Address:
    """Return the address of a socket's name, (host, port) or (host, port, flow, scope)."""
    host, port = str(sockname[0]).split("%")[0], int(sockname[1])
    ip = ipaddress.ip_address(host)
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return Address(kind=f"ip{ip.version}", host=str(ip), port=port)


def list_advertised(bound: Iterable[Address], announce: Sequence[Address], peer: PeerId) -> list[str]:
    """Return what others may dial: `announce` if given, else the bound addresses, with a wildcard's interfaces.

    At most MAX_ADDRESSES: a machine with containers has more.
    """
    addresses = list(announce) or [one for address in bound for one in _interfaces(address)]
    return [str(replace(address, peer=peer)) for address in dict.fromkeys(addresses)][:MAX_ADDRESSES]


def _checked(text: str, kind: str, host: str, port: str, peer: PeerId | None) -> Address:
    if kind not in HOST_KINDS:
        raise BadAddress(f"{text!r}: /{kind} is not one of {', '.join(HOST_KINDS)}")
    if not host:
        raise BadAddress(f"{text!r} names no host")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise BadAddress(f"{text!r}: {port!r} is not a port")
    if kind.startswith("ip"):
        if "%" in host:
            raise BadAddress(f"{text!r}: {host.partition('%')[2]} is an interface, which other machines do not have")
        try:
            host = str(ipaddress.IPv4Address(host) if kind == "ip4" else ipaddress.IPv6Address(host))
        except ValueError as error:
            raise BadAddress(f"{text!r}: {error}") from error
    elif not _is_name(host):
        raise BadAddress(f"{text!r}: {host!r} is not a valid host name")
    return Address(kind=kind, host=host, port=int(port), peer=peer)


def _is_name(host: str) -> bool:
    """Return whether a resolver would look for the name."""
    try:
        name = host.encode("idna").decode("ascii").removesuffix(".")
    except UnicodeError:
        return False
    return len(name) <= MAX_DNS_CHARS and all(_LABEL.fullmatch(label) for label in name.split("."))


def _interfaces(address: Address) -> list[Address]:
    if not address.is_wildcard:
        return [address]
    found: list[Address] = []
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            try:
                ip = ipaddress.ip_address(entry.address)
            except ValueError:
                continue  # a hardware address, or a link-local one with a scope, which others could not use
            if f"ip{ip.version}" == address.kind and not ip.is_link_local:
                found.append(replace(address, host=str(ip)))
    return sorted(found, key=lambda one: ipaddress.ip_address(one.host).is_loopback)
