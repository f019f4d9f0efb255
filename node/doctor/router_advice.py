"""Advise the owner what to do at the router so that others can dial this machine, line by line.

A pure core.

Invariants:

- There is no advice for a machine that others can dial, nor where no peer looked from outside.
- Only advice that can help is given: behind a provider's second router, opening a port at home does not.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from node.doctor.connection import Connection, Mapping, SecondRouter, why_nothing_outside
from node.doctor.findings import Findings, Listening, PortMapping
from swarm.libp2p import parse_address

USUAL_PORT = 4001
"""The port on which other libp2p programs usually listen."""


def advise(findings: Findings, connection: Connection) -> Iterator[str]:
    """Yield the lines in the order in which to do them."""
    if connection.reached or why_nothing_outside(findings):
        return
    listening = findings.listening
    if not isinstance(listening, Listening) or not listening.ports:
        yield "Let the node listen: omit --no-listen, and remove [network] listen = [] from node.toml."
        return
    if connection.second_router is SecondRouter.YES:
        yield f"Two routers stand between you and the internet: {connection.second_router_why}."
        yield "Opening a port at yours does not help, because the other router still blocks it."
        yield "Ask your provider for an IPv4 address of your own, or for IPv6."
        return
    here = _own_address(findings)
    if here is None:
        return
    port = listening.ports[0] if listening.is_fixed else USUAL_PORT
    if connection.mapping is Mapping.NONE:
        yield f"Allow incoming TCP connections to port {port}: a firewall on or before this machine blocks them."
        yield from _choose_port(listening, port, "Give")
        return
    yield from _open_by_router(findings)
    yield from _choose_port(listening, port, "Or by hand: give")
    router = next((host for host in findings.network.gateways if ":" not in host), "")
    where = f", usually at http://{router}" if router else ""
    begin = "Or forward" if listening.is_fixed else "Then forward"
    yield f"{begin} TCP port {port} to {here}, port {port}, in the settings of your router{where}."
    if connection.mapping is Mapping.ANOTHER_PORT:
        outside = parse_address(connection.seen_at[0]).host
        yield f'Then announce that port in node.toml: [network] announce = ["/ip4/{outside}/tcp/{port}"].'
    for address in (parse_address(one.address) for one in connection.not_reached):
        if address.kind == "ip6":
            yield f"Allow incoming TCP connections to {address.host}, port {port}, in the router's firewall for IPv6."
    if connection.second_router is SecondRouter.PERHAPS:
        yield f"{connection.second_router_why.capitalize()}. If that one is yours as well, forward the port there, too."


def _open_by_router(findings: Findings) -> Iterator[str]:
    if not findings.map_port:
        yield "Let the node ask your router to open a port: remove [network] map_port = false from node.toml."
    elif not isinstance(findings.mapping, PortMapping) or not findings.mapping.mapped:
        yield "Enable UPnP, NAT-PMP or PCP in the settings of your router: the node then opens its port itself."


def _choose_port(listening: Listening, port: int, begin: str) -> Iterator[str]:
    if not listening.is_fixed:
        both = f'["/ip4/0.0.0.0/tcp/{port}", "/ip6/::/tcp/{port}"]'
        yield f"{begin} the node a fixed port in node.toml: [network] listen = {both}."


def _own_address(findings: Findings) -> str | None:
    """Return this machine's IPv4 address in its own network: the one nearest to its router's, if there are several."""
    addresses = [ipaddress.IPv4Address(host) for host in findings.network.ip4]
    for gateway in findings.network.gateways:
        if ":" not in gateway:
            addresses.sort(key=lambda one: -_shared_bits(one, ipaddress.IPv4Address(gateway)))
            break
    return str(addresses[0]) if addresses else None


def _shared_bits(one: ipaddress.IPv4Address, other: ipaddress.IPv4Address) -> int:
    return 32 - (int(one) ^ int(other)).bit_length()
