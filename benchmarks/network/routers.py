"""Define the kinds of home routers, in the words of RFC 4787 and RFC 5382, and the nftables rules of each.

    mapping     the outside port of a local port: the same for all destinations, or another for each
    filtering   who may connect to a mapped port: any host, hosts that were sent to, or only those ports

Linux' own masquerade keeps a port where it can, and lets in only the ports that were sent to: that is `port`. Kinds
that let in more keep a map of the local ports that have been seen going out; `symmetric` lets the kernel draw a port
for each connection. Established connections pass everywhere, and so does TCP's simultaneous open. Rules are for TCP:
UDP goes out by plain masquerade.

Invariants:

- An unrequested packet is dropped silently; only `reject` answers it.
- Nodes behind one router use different ports, or the last that used a port has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum

WAN, LAN = "eth0", "lan0"
"""A router's interfaces: to the internet, and to the home."""

TABLE = "home"
MAPPED_MINUTES = 4
"""Lifetime of an idle mapping: the minimum that RFC 5382 allows for one that is not established."""


class By(IntEnum):
    """The properties by which a router maps a port, or decides who may connect. The higher, the harder to get
    through."""

    NOTHING = 0
    """Endpoint-independent."""
    ADDRESS = 1
    """Address-dependent."""
    PORT = 2
    """Address- and port-dependent."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of router; `summary` is for people.

    Args:
        is_public: whether there is no router, so that the node is a public host.
        rejects: whether unrequested SYNs are answered with RST.
        hairpins: whether a node reaches another of its home by that one's outside address.
        carriers: number of further routers of kind `port`, which the provider has.
        daemon: protocol of its daemon that opens ports, "upnp", "pcp" or empty.
        ip4, ip6: address families of the home; IPv6 is filtered as by `port`, and not mapped.
    """

    name: str
    summary: str
    mapping: By = By.NOTHING
    filtering: By = By.PORT
    is_public: bool = False
    rejects: bool = False
    hairpins: bool = False
    carriers: int = 0
    daemon: str = ""
    ip4: bool = True
    ip6: bool = False

    def opened(self) -> Kind:
        """Return the same kind once its daemon, if it has one, has opened the port of a node."""
        return replace(self, filtering=By.NOTHING) if self.daemon else self


_KINDS = (
    Kind(name="open", summary="no router: a public host", filtering=By.NOTHING, is_public=True, ip6=True),
    Kind(name="cone", summary="a mapped port is open to all hosts", filtering=By.NOTHING),
    Kind(name="address", summary="a mapped port is open to hosts that were sent to", filtering=By.ADDRESS),
    Kind(name="port", summary="a mapped port is open only to ports that were sent to, as in most homes"),
    Kind(name="symmetric", summary="another mapped port for each destination", mapping=By.PORT),
    Kind(name="double", summary="a router behind the provider's router", carriers=1),
    Kind(name="reject", summary="as `port`, but unrequested packets are answered with RST", rejects=True),
    Kind(name="hairpin", summary="as `port`, and the home's nodes reach each other from outside", hairpins=True),
    Kind(name="upnp", summary="as `port`, and opens ports by UPnP IGD", daemon="upnp"),
    Kind(name="pcp", summary="as `port`, and opens ports by PCP and NAT-PMP", daemon="pcp"),
    Kind(name="ipv6", summary="IPv6 behind a stateful firewall, IPv4 as `port`", ip6=True),
    Kind(name="ipv6only", summary="IPv6 behind a stateful firewall, and nothing else", ip4=False, ip6=True),
)

KINDS = {kind.name: kind for kind in _KINDS}
CARRIER = KINDS["port"]
"""The provider's router beyond a home's router."""


def can_meet(one: Kind, other: Kind) -> bool:
    """Return whether nodes behind two routers can connect at all, both dialling the other's outside address."""
    if one.ip6 and other.ip6:
        return True
    return one.ip4 and other.ip4 and _gets_through(one, other) and _gets_through(other, one)


def _gets_through(one: Kind, other: Kind) -> bool:
    """Return whether `other` still lets `one` in if `one` comes from an unpredictable port."""
    return one.mapping is By.NOTHING or (other.mapping is By.NOTHING and other.filtering < By.PORT)


def rules(kind: Kind, wan_address: str) -> str:
    """Return the ruleset of a router, for `nft -f -`; its WAN has this IPv4 address."""
    keeps_map = kind.filtering < By.PORT or kind.hairpins
    chains = {
        "prerouting { type nat hook prerouting priority dstnat": _prerouting(kind, wan_address),
        "postrouting { type nat hook postrouting priority srcnat": _postrouting(kind, wan_address),
        "input { type filter hook input priority filter; policy drop": _input(kind),
        "forward { type filter hook forward priority filter; policy drop": _forward(kind, keeps_map=keeps_map),
        **({f"{name} {{": [] for name in DAEMON_CHAINS} if kind.daemon else {}),
    }
    timeout = f"flags dynamic,timeout; timeout {MAPPED_MINUTES}m;"
    lines = [
        f"map mapped {{ type inet_service : ipv4_addr; {timeout} }}",
        f"set asked {{ type ipv4_addr . inet_service; {timeout} }}",
    ]
    # Chains that others jump to come first: nft reads from the top.
    for head, body in reversed(chains.items()):
        lines += [f"chain {head}" + ("" if head.endswith("{") else ";"), *(f"    {rule}" for rule in body), "}"]
    return "\n".join([f"table inet {TABLE} {{", *(f"    {line}" for line in lines), "}\n"])


DAEMON_CHAINS = ("miniupnpd", "prerouting_miniupnpd", "postrouting_miniupnpd")
"""The chains in which miniupnpd writes requested ports: forwarding, destination, and source address."""


def _prerouting(kind: Kind, wan_address: str) -> list[str]:
    """Return the rules for the destination of connections that begin outside or hairpin."""
    to_mapped = "dnat ip to tcp dport map @mapped"
    found = []
    if kind.daemon:
        found.append("jump prerouting_miniupnpd")
    if kind.filtering is By.NOTHING:
        found.append(f"iifname {WAN} {to_mapped}")
    if kind.filtering is By.ADDRESS:
        found.append(f"iifname {WAN} ip saddr . tcp dport @asked {to_mapped}")
    if kind.hairpins:
        found.append(f"iifname {LAN} ip daddr {wan_address} {to_mapped}")
    return found


def _postrouting(kind: Kind, wan_address: str) -> list[str]:
    """Return the rules for the source address of outgoing connections."""
    drawn = " random,fully-random" if kind.mapping is By.PORT else ""
    found = [f"oifname {WAN} meta nfproto ipv4 masquerade{drawn}"]
    if kind.daemon:
        found.insert(0, "jump postrouting_miniupnpd")
    if kind.hairpins:  # with the outside address, not the router's own (RFC 5382, REQ-8)
        found.append(f"oifname {LAN} ct status dnat snat ip to {wan_address}")
    return found


def _input(kind: Kind) -> list[str]:
    """Return the rules for packets to the router itself, unrequested ones included. IPv6 needs neighbour discovery."""
    found = [f"iifname != {WAN} accept", "ct state established,related accept", "meta l4proto ipv6-icmp accept"]
    if kind.rejects:
        found.append("meta l4proto tcp reject with tcp reset")
    return found


def _forward(kind: Kind, *, keeps_map: bool) -> list[str]:
    """Return the rules for forwarded packets. An invalid one is dropped: it would leave with a home address."""
    out = f"iifname {LAN} oifname {WAN}"
    found = ["ct state invalid drop"]
    if keeps_map:
        found.append(f"{out} update @mapped {{ tcp sport : ip saddr }}")
    if kind.filtering is By.ADDRESS:
        found.append(f"{out} update @asked {{ ip daddr . tcp sport }}")
    if kind.daemon:
        found.append("jump miniupnpd")
    return [*found, "ct state established,related accept", f"{out} accept", "ct status dnat accept"]
