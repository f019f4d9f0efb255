"""An internet on one machine: public hosts, and homes behind routers of the kinds that there are.

      public host        carrier --100.64.N.0/24-- router            one star, as in emulation.py:
           |                |                        |               rates and delays are those of the WAN
    ---- 30.77.0.0/24, 2600:30:77::/64 ----      192.168.N.0/24
           |                                         |
        router --192.168.N.0/24-- nodes            nodes

    python -m benchmarks.network.homes KIND[:NODES] ...     build one home for each, and keep them until Ctrl-C

A home `h` has the router `hrouter`; its node is `h`, or `h1`, `h2` and so on where there are several. A home with IPv6
has 2600:30:77:N::/64 as well. Two public hosts, WITNESSES, are always there: router_probe.py needs them.

Invariants:
- Addresses are public to whoever judges by the IANA registries, though nothing leads out of the namespaces.
- Nothing is left when the laboratory is closed or its owner dies, daemons included.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from uuid import uuid4

from benchmarks.network.emulation import Network, Node, Subnet, open_network
from benchmarks.network.namespaces import inside, ip, open_namespaces, run, socket_in
from benchmarks.network.requirements import NetworkUnavailable, require_network
from benchmarks.network.routers import CARRIER, DAEMON_CHAINS, KINDS, LAN, TABLE, WAN, Kind, rules

INTERNET = Subnet(ip4=IPv4Network("30.77.0.0/24"), ip6=IPv6Network("2600:30:77::/64"))
"""Neither private nor of documentation nor of benchmarks, which many programs do not take for public addresses."""

WITNESSES = ("east", "west")
"""Public hosts that tell where they see somebody, and from which strangers knock."""

DEAF_PORT = 9
"""Of a witness: it swallows SYNs, so that a port was spoken to and yet no connection came of it."""

DEAF = f"""
table inet deaf {{
    chain input {{ type filter hook input priority filter;
        tcp dport {DEAF_PORT} tcp flags & (syn | ack) == syn drop
    }}
}}
"""

DAEMON_START_S = 10.0
"""It takes some milliseconds, and longer where many wait for a core."""

DAEMON_CONFIG = """
ext_ifname={wan}
listening_ip={lan}
http_port=0
enable_upnp={upnp}
enable_natpmp={pcp}
min_lifetime=1
max_lifetime=86400
lease_file={directory}/leases
upnp_table_name={table}
upnp_nat_table_name={table}
upnp_forward_chain={chains[0]}
upnp_nat_chain={chains[1]}
upnp_nat_postrouting_chain={chains[2]}
uuid={uuid}
secure_mode=yes
system_uptime=no
allow 1024-65535 {network} 1024-65535
deny 0-65535 0.0.0.0/0 0-65535
"""


NETLINK_NETFILTER = 12
NETLINK_HEADER, NETFILTER_HEADER, ERROR_CODE = struct.Struct("=IHHII"), struct.Struct(">BBH"), struct.Struct("=i")
CONNTRACK_DELETE, REQUEST_WITH_ANSWER = 1 << 8 | 2, 1 | 4
FORGET = NETLINK_HEADER.pack(20, CONNTRACK_DELETE, REQUEST_WITH_ANSWER, 1, 0) + NETFILTER_HEADER.pack(0, 0, 0)
"""Delete the entries of the table of connections, and name none, which means all (linux/netfilter/nfnetlink.h)."""


MAX_NODES = 100
"""In one home: far from what its addresses allow."""


@dataclass(frozen=True, kw_only=True)
class Home:
    """Nodes behind one router; rates in Mbit/s and the delay in one direction are those of its way to the internet."""

    name: str
    kind: Kind
    num_nodes: int = 1
    up: float = 0.0
    down: float = 0.0
    delay_ms: float = 0.0

    @property
    def nodes(self) -> list[str]:
        """The names of its nodes."""
        return [self.name] if self.num_nodes == 1 else [f"{self.name}{i + 1}" for i in range(self.num_nodes)]

    @property
    def routers(self) -> list[str]:
        """The names of its routers, the one nearest to the internet first."""
        if self.kind.is_public:
            return []
        return [*(f"{self.name}carrier{i + 1}" for i in range(self.kind.carriers)), f"{self.name}router"]

    @property
    def gates(self) -> list[str]:
        """Those of the star who stand for this home: its outermost router, or the public hosts themselves."""
        return self.routers[:1] or self.nodes


class Laboratory:
    """A running internet; get one from `open_homes`. `network` is the star: links are changed and cut there."""

    def __init__(self, network: Network, homes: Sequence[Home], namespaces: dict[str, str]) -> None:
        self.network = network
        self.homes = tuple(homes)
        self._namespaces = namespaces
        self._homes = {node: home for home in homes for node in home.nodes}
        self._numbers = {home.name: number for number, home in enumerate(homes, 1)}

    def home_of(self, node: str) -> Home | None:
        """The home of a node; None for public hosts that are of none."""
        return self._homes.get(node)

    def namespace(self, name: str) -> str:
        """The namespace of a node, a router or a public host."""
        return self._namespaces[name]

    def inside(self, name: str, argv: Sequence[str]) -> list[str]:
        """The command line that runs `argv` there. It is killed, at the latest, when the laboratory closes."""
        return inside(self._namespaces[name], argv)

    def gate(self, name: str) -> str:
        """Who stands for a node in the star: its outermost router, or itself."""
        home = self.home_of(name)
        return name if home is None or home.kind.is_public else home.gates[0]

    def address(self, name: str) -> str:
        """The IPv4 address of a node's own interface; empty where it has none."""
        home = self.home_of(name)
        if home is None or home.kind.is_public:
            return self.network.address(name)
        return _lan4(self._numbers[home.name], home.nodes.index(name) + 2) if home.kind.ip4 else ""

    def address6(self, name: str) -> str:
        """The IPv6 address of a node; empty where it has none."""
        home = self.home_of(name)
        if home is None or home.kind.is_public:
            return self.network.address6(name)
        return _lan6(self._numbers[home.name], home.nodes.index(name) + 2) if home.kind.ip6 else ""

    def gateway(self, name: str) -> str:
        """The IPv4 address of a node's router, inside the home."""
        home = self.home_of(name)
        assert home is not None
        return _lan4(self._numbers[home.name], 1)

    def round_trip_s(self, one: str, other: str) -> float:
        """What the delays of the links between two nodes add up to, there and back."""
        delays = {node.name: node.delay_ms for node in self.network.nodes}
        here, there = self.gate(one), self.gate(other)
        return 0.0 if here == there else 2 * (delays[here] + delays[there]) / 1000

    def reboot(self, home: Home) -> None:
        """Have the routers of a home forget every mapping and connection; ports that a daemon opened stay open."""
        for router in home.routers:
            namespace = self._namespaces[router]
            _forget_connections(namespace)
            run(*inside(namespace, ["nft", "flush", "map", "inet", TABLE, "mapped"]))
            run(*inside(namespace, ["nft", "flush", "set", "inet", TABLE, "asked"]))


@contextmanager
def open_homes(homes: Sequence[Home], hosts: Sequence[Node] = ()) -> Iterator[Laboratory]:
    """Build an internet of these homes and public hosts that lasts as long as the block.

    Names are unique, letters and digits. Raises NetworkUnavailable.
    """
    daemons = any(home.kind.daemon for home in homes)
    require_network(routers=["nft", *(["miniupnpd"] if daemons else [])])
    gates = [
        Node(name=gate, up=home.up, down=home.down, delay_ms=home.delay_ms) for home in homes for gate in home.gates
    ]
    star = [*(Node(name=name) for name in WITNESSES), *hosts, *gates]
    behind = [name for home in homes for name in [*home.routers, *home.nodes] if name not in home.gates]
    with ExitStack() as stack:
        network = stack.enter_context(open_network(star, INTERNET))
        namespaces = {node.name: network.namespace(node.name) for node in star}
        namespaces.update(stack.enter_context(open_namespaces(behind)) if behind else {})
        for witness in WITNESSES:
            _load_rules(namespaces[witness], DEAF)
        for number, home in enumerate(homes, 1):
            if not home.kind.is_public:
                _build(home, number, network, namespaces)
                stack.enter_context(_daemon(home, number, namespaces))
        yield Laboratory(network, homes, namespaces)


def _lan4(number: int, host: int) -> str:
    return f"192.168.{number}.{host}"


def _lan6(number: int, host: int) -> str:
    return f"2600:30:77:{number:x}::{host:x}"


def _between4(number: int, layer: int, host: int) -> str:
    """An address between two routers (RFC 6598); `layer` counts them from the internet."""
    return f"100.{64 + layer}.{number}.{host}"


def _build(home: Home, number: int, network: Network, namespaces: dict[str, str]) -> None:
    """Put a home's routers one behind the other, and its nodes behind the last."""
    *carriers, router = home.routers
    wan = network.address(home.gates[0])
    for layer, carrier in enumerate(carriers):
        address = _between4(number, layer, 1)
        _route(namespaces[carrier], CARRIER, wan, [f"{address}/24"])
        wan = _between4(number, layer, 2)
        _plug(namespaces[carrier], namespaces[home.routers[layer + 1]], 0, {f"{wan}/24": address})
    own = [f"{_lan4(number, 1)}/24"] if home.kind.ip4 else []
    own += [f"{_lan6(number, 1)}/64"] if home.kind.ip6 else []
    _route(namespaces[router], home.kind, wan, own)
    for index, node in enumerate(home.nodes):
        addresses = {f"{_lan4(number, index + 2)}/24": _lan4(number, 1)} if home.kind.ip4 else {}
        addresses |= {f"{_lan6(number, index + 2)}/64": _lan6(number, 1)} if home.kind.ip6 else {}
        _plug(namespaces[router], namespaces[node], index, addresses)
    if home.kind.ip6:
        _announce(f"{_lan6(number, 0)}/64", router, network, namespaces)


def _route(namespace: str, kind: Kind, wan_address: str, own: Sequence[str]) -> None:
    """Make a router of a namespace that has a WAN: a bridge for the home, with addresses, and the rules of its kind."""
    addresses = "".join(f"addr add {address} dev {LAN}{_nodad(address)}\n" for address in own)
    ip("-n", namespace, batch=f"link add {LAN} type bridge\n{addresses}link set {LAN} up\n")
    _load_rules(namespace, rules(kind, wan_address))
    # Last: nothing passes before there are rules.
    switches = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
    run(*inside(namespace, ["sh", "-c", " && ".join(f"echo 1 > /proc/sys/{one}" for one in switches)]))


def _plug(router: str, namespace: str, index: int, addresses: dict[str, str]) -> None:
    """Lay a cable from a router to one behind it, who has these addresses, each with its gateway."""
    port = f"h{index}"
    ip("link", "add", WAN, "netns", namespace, "type", "veth", "peer", "name", port, "netns", router)
    ip("-n", router, "link", "set", port, "master", LAN, "up")
    own = "".join(f"addr add {address} dev {WAN}{_nodad(address)}\n" for address in addresses)
    routes = "".join(f"route add default via {gateway}\n" for gateway in addresses.values())
    ip("-n", namespace, batch=f"{own}link set {WAN} up\n{routes}")


def _announce(prefix: str, router: str, network: Network, namespaces: dict[str, str]) -> None:
    """Tell everybody in the star the way to a home's IPv6 addresses."""
    for node in network.nodes:
        if node.name != router:
            ip("-n", namespaces[node.name], "route", "add", prefix, "via", network.address6(router), "dev", WAN)


def _nodad(address: str) -> str:
    """For IPv6: nobody else has it, and asking would take a second in which it cannot be used."""
    return " nodad" if ":" in address else ""


def _forget_connections(namespace: str) -> None:
    """Empty the kernel's table of connections, as `conntrack -F` does."""
    with socket_in(namespace, socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as netlink:
        netlink.send(FORGET)
        error = ERROR_CODE.unpack_from(netlink.recv(4096), NETLINK_HEADER.size)[0]
    if error:
        raise NetworkUnavailable(f"the kernel did not forget the connections of {namespace}: {os.strerror(-error)}")


def _load_rules(namespace: str, text: str) -> None:
    run(*inside(namespace, ["nft", "-f", "-"]), stdin=text)


@contextmanager
def _daemon(home: Home, number: int, namespaces: dict[str, str]) -> Iterator[None]:
    """Run the daemon of a home's router that opens ports, if it has one."""
    if not home.kind.daemon:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="volery-router-") as directory:
        config = Path(directory) / "miniupnpd.conf"
        config.write_text(_daemon_config(home.kind, f"{_lan4(number, 0)}/24", directory), encoding="utf-8")
        log = Path(directory) / "log"
        # In the foreground, so that it is our child.
        argv = ["miniupnpd", "-d", "-f", str(config), "-P", f"{directory}/pid"]
        with (
            log.open("wb") as output,
            subprocess.Popen(inside(namespaces[home.routers[-1]], argv), stdout=output, stderr=output) as daemon,
        ):
            try:
                _wait_listening(daemon, log)
                yield
            finally:
                daemon.kill()


def _wait_listening(daemon: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a daemon says that it listens. Raises NetworkUnavailable with its last words."""
    ends = time.monotonic() + DAEMON_START_S
    while b"istening" not in (said := log.read_bytes()):
        if daemon.poll() is not None or time.monotonic() > ends:
            raise NetworkUnavailable(f"miniupnpd did not start: {said.decode(errors='replace').strip()[-500:]}")
        time.sleep(0.01)


def _daemon_config(kind: Kind, network: str, directory: str) -> str:
    return DAEMON_CONFIG.format(
        wan=WAN,
        lan=LAN,
        upnp="yes" if kind.daemon == "upnp" else "no",
        pcp="yes" if kind.daemon == "pcp" else "no",
        directory=directory,
        table=TABLE,
        uuid=uuid4(),
        chains=DAEMON_CHAINS,
        network=network,
    )


def main(words: Sequence[str]) -> int:
    """Build what the words name, probe it, say how to get in, and keep it until Ctrl-C. Returns the exit code."""
    # They look at laboratories, and so import this module.
    from benchmarks.network.ports import ProbeFailed
    from benchmarks.network.router_probe import check

    try:
        homes = [_parse(word, words[:index]) for index, word in enumerate(words)]
        if not homes:
            raise ValueError("no kind was named")
    except ValueError as error:
        kinds = "".join(f"    {kind.name:10} {kind.summary}\n" for kind in KINDS.values())
        print(f"{error}.\nusage: python -m benchmarks.network.homes KIND[:NODES] ...\n{kinds}", file=sys.stderr, end="")
        return 2
    try:
        with open_homes(homes, [Node(name="learner")]) as lab:
            print("looking at every router ...", flush=True)
            check(lab)
            print("each behaves as its kind does.\n")
            for name in ("learner", *WITNESSES):
                _tell(lab, name, "public host")
            for home in homes:
                for router in home.routers:
                    _tell(lab, router, f"router, {home.kind.summary}")
                for node in home.nodes:
                    _tell(lab, node, f"node, {home.kind.name}")
            print("\nAll of it is gone after Ctrl-C.", flush=True)
            with suppress(KeyboardInterrupt):
                signal.pause()
    except (NetworkUnavailable, ProbeFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parse(word: str, before: Sequence[str]) -> Home:
    """The home that a word stands for: a second one of its kind has a number. Raises ValueError."""
    name, _, nodes = word.partition(":")
    if name not in KINDS:
        raise ValueError(f"there is no kind of router called {name!r}")
    if nodes and not (nodes.isascii() and nodes.isdigit() and 1 <= int(nodes) <= MAX_NODES):
        raise ValueError(f"{word!r}: {nodes!r} is not a number of nodes from 1 to {MAX_NODES}")
    earlier = sum(one.partition(":")[0] == name for one in before)
    suffix = chr(ord("a") + earlier) if earlier else ""
    return Home(name=name + suffix, kind=KINDS[name], num_nodes=int(nodes or 1))


def _tell(lab: Laboratory, name: str, what: str) -> None:
    argv = " ".join(lab.inside(name, ["bash"]))
    addresses = ip("-n", lab.namespace(name), "-o", "addr", "show", "scope", "global").splitlines()
    print(f"{name}: {what}; {', '.join(line.split()[3] for line in addresses)}\n    {argv}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
