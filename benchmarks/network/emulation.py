"""Emulate a star of nodes around one switch, each in a namespace of its own with one interface, eth0.

        node's namespace               hub
    +-----------------+        +------------------+
    | eth0, uplink  --|= veth =|-- downlink, p0 --|-- bridge, or delay_switch.c if any node has a delay
    +-----------------+        +------------------+

Invariants:

- The uplink is a token bucket on the node's end of the cable, the downlink one on the hub's.
- Rates are those of TCP payload, so that 50 means 50 Mbit/s of file. `probe` checks them: rates from 10 to 500 Mbit/s
  come out within 2.5 %.
- Links may be changed or cut while nodes run.
- A full queue drops frames, as a router does.
- When the network is closed or its owner dies, nothing of it is left.
"""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path

from benchmarks.network.namespaces import inside, ip, open_namespaces, run
from benchmarks.network.requirements import NetworkUnavailable, require_network

HUB = "hub"
MAX_NODES = 200
FRAME_BYTES, PAYLOAD_BYTES = 1514, 1448
"""An Ethernet frame, which token buckets count, and the TCP payload in it (MTU 1500, timestamps on)."""

BURST_MS = 2.0
MIN_BURST_BYTES = 70_000
"""Larger than the largest frame that segmentation offload passes on (64 KiB). A smaller bucket would cut frames up, and
the emulation would cost eight times the processor time."""

QUEUE_MS = 60.0
MIN_QUEUE_BYTES = 128_000
"""The queue of a home router: two round trips of 30 ms."""


@dataclass(frozen=True, kw_only=True)
class Subnet:
    """The addresses of a network: 256 of IPv4, and as many of IPv6 if `ip6` is given."""

    ip4: IPv4Network
    ip6: IPv6Network | None = None


SUBNET = Subnet(ip4=IPv4Network("10.77.0.0/24"))
"""Not visible outside: it exists only in namespaces without a route to other networks."""


@dataclass(frozen=True, kw_only=True)
class Node:
    """One node: rates in Mbit/s of payload, 0 for no limit; the delay is one way, added going in and out."""

    name: str
    up: float = 0.0
    down: float = 0.0
    delay_ms: float = 0.0


class Network:
    """A running network; get one from `open_network`. Methods raise NetworkUnavailable if the system refuses."""

    def __init__(self, nodes: Sequence[Node], namespaces: dict[str, str], subnet: Subnet = SUBNET) -> None:
        self.nodes = tuple(nodes)
        self.subnet = subnet
        self._namespaces = namespaces
        self._index = {node.name: index for index, node in enumerate(nodes)}

    def address(self, name: str) -> str:
        """Return the IPv4 address of a node."""
        return _addresses(self.subnet, self._index[name])[0]

    def address6(self, name: str) -> str:
        """Return the IPv6 address of a node; empty if the network has none."""
        return next(iter(_addresses(self.subnet, self._index[name])[1:]), "")

    def namespace(self, name: str) -> str:
        """Return the namespace of a node."""
        return self._namespaces[name]

    def inside(self, name: str, argv: Sequence[str]) -> list[str]:
        """Return the command line that runs `argv` in a node. It is killed at the latest when the network closes."""
        return inside(self._namespaces[name], argv)

    def set_rate(self, name: str, *, up: float | None = None, down: float | None = None) -> None:
        """Change a node's rates from now on, in Mbit/s; None leaves a rate unchanged, 0 removes its limit."""
        if up is not None:
            _shape(self._namespaces[name], "eth0", up)
        if down is not None:
            _shape(self._namespaces[HUB], _port(self._index[name]), down)

    def set_link(self, name: str, *, connected: bool) -> None:
        """Pull a node's cable, or put it back. No end gets a signal: connections just time out."""
        state = "up" if connected else "down"
        ip("-n", self._namespaces[HUB], "link", "set", _port(self._index[name]), state)


@contextmanager
def open_network(nodes: Sequence[Node], subnet: Subnet = SUBNET) -> Iterator[Network]:
    """Build a network that lasts as long as the block. Names are unique, letters and digits, and none is "hub".

    Raises NetworkUnavailable.
    """
    delays = any(node.delay_ms for node in nodes)
    require_network(delays=delays)
    names = [node.name for node in nodes]
    if len({*names, HUB}) != len(names) + 1 or len(names) > MAX_NODES:
        raise ValueError(f"at most {MAX_NODES} nodes, with different names")
    with ExitStack() as stack:
        namespaces = stack.enter_context(open_namespaces([HUB, *names]))
        network = Network(nodes, namespaces, subnet)
        for index, node in enumerate(nodes):
            _plug(namespaces[HUB], namespaces[node.name], index, subnet)
            network.set_rate(node.name, up=node.up, down=node.down)
        if delays:
            stack.enter_context(_delay_switch(namespaces[HUB], nodes))
        else:
            _bridge(namespaces[HUB], len(nodes))
        for index, node in enumerate(nodes):
            _introduce(namespaces[node.name], index, len(nodes), subnet)
        yield network


def _addresses(subnet: Subnet, index: int) -> list[str]:
    """Return the IPv4 address of a node, and its IPv6 address if there is one."""
    ip6 = [] if subnet.ip6 is None else [str(subnet.ip6[index + 1])]
    return [str(subnet.ip4[index + 1]), *ip6]


def _mac(index: int) -> str:
    return f"02:77:00:00:00:{index + 1:02x}"


def _port(index: int) -> str:
    return f"p{index}"


def _plug(hub: str, namespace: str, index: int, subnet: Subnet) -> None:
    """Connect a cable; both ends are created inside their namespaces."""
    port, mac = _port(index), _mac(index)
    ip("link", "add", "eth0", "netns", namespace, "address", mac, "type", "veth", "peer", "name", port, "netns", hub)
    ip4, *ip6 = _addresses(subnet, index)
    # nodad: no other node has the address, and the check would take a second in which it cannot be used.
    own = [f"addr add {ip4}/{subnet.ip4.prefixlen} dev eth0", *(f"addr add {one}/64 dev eth0 nodad" for one in ip6)]
    ip("-n", namespace, batch="\n".join([*own, "link set eth0 up\n"]))
    ip("-n", hub, "link", "set", port, "up")


def _bridge(hub: str, num_ports: int) -> None:
    ports = "".join(f"link set {_port(index)} master br0\n" for index in range(num_ports))
    ip("-n", hub, batch=f"link add br0 type bridge\nlink set br0 up\n{ports}")


def _introduce(namespace: str, index: int, num_nodes: int, subnet: Subnet) -> None:
    """Give a node the addresses of all others: no broadcasts, and no first packet that waits for an answer."""
    others = [(address, _mac(o)) for o in range(num_nodes) if o != index for address in _addresses(subnet, o)]
    neighbours = (f"neigh replace {address} lladdr {mac} dev eth0 nud permanent\n" for address, mac in others)
    ip("-n", namespace, batch="".join(neighbours))


def _shape(namespace: str, device: str, mbit: float) -> None:
    if mbit <= 0:
        # `replace` first: deleting a missing qdisc would be an error.
        run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", "pfifo")
        return
    bits_per_s = mbit * 1e6 * FRAME_BYTES / PAYLOAD_BYTES
    burst = max(MIN_BURST_BYTES, int(bits_per_s / 8 * BURST_MS / 1000))
    limit = burst + max(MIN_QUEUE_BYTES, int(bits_per_s / 8 * QUEUE_MS / 1000))
    bucket = ("tbf", "rate", f"{int(bits_per_s)}bit", "burst", str(burst), "limit", str(limit))
    run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *bucket)


@contextmanager
def _delay_switch(hub: str, nodes: Sequence[Node]) -> Iterator[None]:
    """Compile and run the switch that replaces netem, in the hub."""
    ports = [f"{_port(i)}/{_mac(i)}/{round(node.delay_ms * 1000)}" for i, node in enumerate(nodes)]
    with tempfile.TemporaryDirectory(prefix="volery-switch-") as directory:
        program = Path(directory) / "delay_switch"
        run("cc", "-O2", "-o", str(program), str(Path(__file__).with_name("delay_switch.c")))
        switch = subprocess.Popen(inside(hub, [str(program), *ports]), stdout=subprocess.PIPE)
        assert switch.stdout is not None
        is_ready = switch.stdout.readline().strip() == b"ready"
    # The folder is gone by now, so that a killed owner leaves none behind. A program that runs needs no file.
    with switch:
        try:
            if not is_ready:
                raise NetworkUnavailable("The delay switch did not start; its error message is above.")
            yield
        finally:
            switch.kill()
