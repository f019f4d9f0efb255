"""Emulate an internet on one machine: public hosts, and homes behind routers of all known kinds.

      public host        carrier --100.64.N.0/24-- router            one star, as in emulation.py:
           |                |                        |               rates and delays are those of the WAN
    ---- 30.77.0.0/24, 2600:30:77::/64 ----      192.168.N.0/24
           |                                         |
        router --192.168.N.0/24-- nodes            nodes

    python -m benchmarks.network.homes KIND[:NODES] ...     build one home for each, and keep them until Ctrl-C

A home `h` has the router `hrouter`; its node is `h`, or `h1`, `h2` and so on where there are several. A home with IPv6
has 2600:30:77:N::/64 as well. Two public hosts, WITNESSES, are always there: router_probe.py needs them.

Invariants:

- Addresses are public by the IANA registries, though nothing leads out of the namespaces.
- Nothing keeps running when the laboratory is closed or its owner dies, daemons included.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from ipaddress import IPv4Network, IPv6Network

from benchmarks.network.emulation import Network, Node, Subnet, open_network
from benchmarks.network.home import Home, lan4, lan6
from benchmarks.network.namespaces import inside, ip, open_namespaces, run
from benchmarks.network.port_daemon import run_daemon
from benchmarks.network.requirements import NetworkUnavailable, require_network
from benchmarks.network.routers import KINDS
from benchmarks.network.wiring import build, forget_mappings, load_rules

INTERNET = Subnet(ip4=IPv4Network("30.77.0.0/24"), ip6=IPv6Network("2600:30:77::/64"))
"""Not private, and not reserved for documentation or benchmarks: many programs do not accept those as public."""

WITNESSES = ("east", "west")
"""Public hosts that report the outside address of a node, and from which strangers connect."""

DEAF_PORT = 9
"""A witness's port that drops SYNs: a node has sent to it, and yet no connection results."""

DEAF = f"""
table inet deaf {{
    chain input {{ type filter hook input priority filter;
        tcp dport {DEAF_PORT} tcp flags & (syn | ack) == syn drop
    }}
}}
"""

CONGESTION = ("cubic", "reno")
"""The first of these that a namespace supports is used. Most machines at home use CUBIC, the default of Linux, macOS
and Windows; Reno waits for a loss as well. The machine below may use another one: BBR does not see the queue of a
home's router, fills it, and loses much of what it sends."""

MAX_NODES = 100
"""Limit of one home, far below what its addresses allow."""


class Laboratory:
    """A running internet; get one from `open_homes`. `network` is the star, in which links are changed and cut."""

    def __init__(self, network: Network, homes: Sequence[Home], namespaces: dict[str, str]) -> None:
        self.network = network
        self.homes = tuple(homes)
        self._namespaces = namespaces
        self._homes = {node: home for home in homes for node in home.nodes}
        self._numbers = {home.name: number for number, home in enumerate(homes, 1)}

    def home_of(self, node: str) -> Home | None:
        """Return the home of a node; None for public hosts outside of any home."""
        return self._homes.get(node)

    def namespace(self, name: str) -> str:
        """Return the namespace of a node, a router or a public host."""
        return self._namespaces[name]

    def inside(self, name: str, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` there. It is killed at the latest when the laboratory closes."""
        return inside(self._namespaces[name], argv)

    def gate(self, name: str) -> str:
        """Return the member of the star that stands for a node: its outermost router, or itself."""
        home = self.home_of(name)
        return name if home is None or home.kind.is_public else home.gates[0]

    def address(self, name: str) -> str:
        """Return the IPv4 address of a node's own interface; empty if it has none."""
        home = self.home_of(name)
        if home is None or home.kind.is_public:
            return self.network.address(name)
        return lan4(self._numbers[home.name], home.nodes.index(name) + 2) if home.kind.ip4 else ""

    def address6(self, name: str) -> str:
        """Return the IPv6 address of a node; empty if it has none."""
        home = self.home_of(name)
        if home is None or home.kind.is_public:
            return self.network.address6(name)
        return lan6(self._numbers[home.name], home.nodes.index(name) + 2) if home.kind.ip6 else ""

    def gateway(self, name: str) -> str:
        """Return the IPv4 address of a node's router, inside the home."""
        home = self.home_of(name)
        assert home is not None
        return lan4(self._numbers[home.name], 1)

    def round_trip_s(self, one: str, other: str) -> float:
        """Return the sum of the link delays between two nodes, there and back."""
        delays = {node.name: node.delay_ms for node in self.network.nodes}
        here, there = self.gate(one), self.gate(other)
        return 0.0 if here == there else 2 * (delays[here] + delays[there]) / 1000

    def reboot(self, home: Home) -> None:
        """Let the routers of a home forget every mapping and connection; ports that a daemon opened stay open."""
        for router in home.routers:
            forget_mappings(self._namespaces[router])


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
        for namespace in namespaces.values():
            _choose_congestion_control(namespace)
        for witness in WITNESSES:
            load_rules(namespaces[witness], DEAF)
        for number, home in enumerate(homes, 1):
            if not home.kind.is_public:
                build(home, number, network, namespaces)
                stack.enter_context(run_daemon(home, number, namespaces))
        yield Laboratory(network, homes, namespaces)


def _choose_congestion_control(namespace: str) -> None:
    tries = " || ".join(f"echo {name} > /proc/sys/net/ipv4/tcp_congestion_control" for name in CONGESTION)
    run(*inside(namespace, ["sh", "-c", tries]))


def main(words: Sequence[str]) -> int:
    """Build the homes that the words name, probe them, print how to enter them, and wait for Ctrl-C. Returns the exit
    code."""
    # These modules import this one.
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
        with suppress(KeyboardInterrupt), open_homes(homes, [Node(name="learner")]) as lab:
            print("probing every router ...", flush=True)
            check(lab)
            print("each behaves as its kind does.\n")
            for name in ("learner", *WITNESSES):
                _tell(lab, name, "public host")
            for home in homes:
                for router in home.routers:
                    _tell(lab, router, f"router, {home.kind.summary}")
                for node in home.nodes:
                    _tell(lab, node, f"node, {home.kind.name}")
            print("\nCtrl-C removes all of it.", flush=True)
            signal.pause()
    except (NetworkUnavailable, ProbeFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _parse(word: str, before: Sequence[str]) -> Home:
    """Return the home that a word stands for; a second one of its kind gets a letter. Raises ValueError."""
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
