"""Build routers and their homes from namespaces: bridges, cables, routes and rules.

    a router's namespace                              a node's, or that of a router behind it
    +-----------------------------------------+       +---------------+
    | eth0 -- its kind's rules -- lan0 -- h0 -|= veth =|- eth0        |
    +-----------------------------------------+       +---------------+

Invariants:

- A router forwards nothing before it has its rules.
- No member of the star has a route to an IPv4 address of a home.
- Nodes of one home reach each other, whatever their router filters.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Sequence

from benchmarks.network.emulation import Network
from benchmarks.network.home import Home, between4, lan4, lan6
from benchmarks.network.namespaces import inside, ip, run, socket_in
from benchmarks.network.requirements import NetworkUnavailable
from benchmarks.network.routers import CARRIER, LAN, TABLE, WAN, Kind, rules

BRIDGED = "/proc/sys/net/bridge/bridge-nf-call-*tables"
"""Whether the rules apply to packets on a bridge. They do on a machine that runs containers."""

NETLINK_NETFILTER = 12
NETLINK_HEADER, NETFILTER_HEADER, ERROR_CODE = struct.Struct("=IHHII"), struct.Struct(">BBH"), struct.Struct("=i")
CONNTRACK_DELETE, REQUEST_WITH_ANSWER = 1 << 8 | 2, 1 | 4
FORGET = NETLINK_HEADER.pack(20, CONNTRACK_DELETE, REQUEST_WITH_ANSWER, 1, 0) + NETFILTER_HEADER.pack(0, 0, 0)
"""A request to delete entries of the connection table that names none, which means all
(linux/netfilter/nfnetlink.h)."""


def build(home: Home, number: int, network: Network, namespaces: dict[str, str]) -> None:
    """Connect a home's routers one behind the other, and its nodes behind the last."""
    *carriers, router = home.routers
    wan = network.address(home.gates[0])
    for layer, carrier in enumerate(carriers):
        address = between4(number, layer, 1)
        _route(namespaces[carrier], CARRIER, wan, [f"{address}/24"])
        wan = between4(number, layer, 2)
        _plug(namespaces[carrier], namespaces[home.routers[layer + 1]], 0, {f"{wan}/24": address})
    own = [f"{lan4(number, 1)}/24"] if home.kind.ip4 else []
    own += [f"{lan6(number, 1)}/64"] if home.kind.ip6 else []
    _route(namespaces[router], home.kind, wan, own)
    for index, node in enumerate(home.nodes):
        addresses = {f"{lan4(number, index + 2)}/24": lan4(number, 1)} if home.kind.ip4 else {}
        addresses |= {f"{lan6(number, index + 2)}/64": lan6(number, 1)} if home.kind.ip6 else {}
        _plug(namespaces[router], namespaces[node], index, addresses)
    if home.kind.ip6:
        _announce(f"{lan6(number, 0)}/64", router, network, namespaces)


def _route(namespace: str, kind: Kind, wan_address: str, own: Sequence[str]) -> None:
    """Turn a namespace with a WAN into a router: a bridge for the home, with addresses, and the rules of its kind."""
    addresses = "".join(f"addr add {address} dev {LAN}{_nodad(address)}\n" for address in own)
    ip("-n", namespace, batch=f"link add {LAN} type bridge\n{addresses}link set {LAN} up\n")
    load_rules(namespace, rules(kind, wan_address))
    # Packets between nodes of one home pass a switch, which no router filters.
    run(*inside(namespace, ["sh", "-c", f"for it in {BRIDGED}; do [ ! -e $it ] || echo 0 > $it; done"]))
    # Last, so that nothing passes before there are rules.
    switches = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
    run(*inside(namespace, ["sh", "-c", " && ".join(f"echo 1 > /proc/sys/{one}" for one in switches)]))


def _plug(router: str, namespace: str, index: int, addresses: dict[str, str]) -> None:
    """Connect a cable from a router to a node behind it, with these addresses, each with its gateway."""
    port = f"h{index}"
    ip("link", "add", WAN, "netns", namespace, "type", "veth", "peer", "name", port, "netns", router)
    ip("-n", router, "link", "set", port, "master", LAN, "up")
    own = "".join(f"addr add {address} dev {WAN}{_nodad(address)}\n" for address in addresses)
    routes = "".join(f"route add default via {gateway}\n" for gateway in addresses.values())
    ip("-n", namespace, batch=f"{own}link set {WAN} up\n{routes}")


def _announce(prefix: str, router: str, network: Network, namespaces: dict[str, str]) -> None:
    """Give all members of the star the route to a home's IPv6 addresses."""
    for node in network.nodes:
        if node.name != router:
            ip("-n", namespaces[node.name], "route", "add", prefix, "via", network.address6(router), "dev", WAN)


def _nodad(address: str) -> str:
    """Return the flag for IPv6: no other node has the address, and the check would take a second."""
    return " nodad" if ":" in address else ""


def forget_connections(namespace: str) -> None:
    """Empty the kernel's table of connections, as `conntrack -F` does."""
    with socket_in(namespace, socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as netlink:
        netlink.send(FORGET)
        error = ERROR_CODE.unpack_from(netlink.recv(4096), NETLINK_HEADER.size)[0]
    if error:
        raise NetworkUnavailable(f"the kernel did not forget the connections of {namespace}: {os.strerror(-error)}")


def load_rules(namespace: str, text: str) -> None:
    run(*inside(namespace, ["nft", "-f", "-"]), stdin=text)


def forget_mappings(router: str) -> None:
    """Let a router forget which connections it let out, and under which address."""
    forget_connections(router)
    run(*inside(router, ["nft", "flush", "map", "inet", TABLE, "mapped"]))
    run(*inside(router, ["nft", "flush", "set", "inet", TABLE, "asked"]))
