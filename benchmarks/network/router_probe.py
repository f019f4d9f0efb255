"""Observe, with real TCP connections, how the routers of a laboratory behave.

    mapping     a node connects from one port to two public hosts, and to two ports of one: which ports do they see?
    filtering   a node sends to one port of a host, and then listens: from where does a SYN get in?
    hairpin     a node connects to the outside address of another node of its home
    meeting     can two nodes of different homes connect? (meeting_probe.py; daemon_probe.py asks for open ports)

A mapping exists only once a connection has left from that port, so a probe listens, with SO_REUSEPORT, on the port from
which it connects. Its sockets all belong to this process, each created in its node's namespace.

Invariants:

- `observe` reports only what it saw. `check` compares it with the kinds, and raises for the first that differs.
- A SYN counts as swallowed only after there was time to send it twice.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import combinations

from benchmarks.network.daemon_probe import check_daemon
from benchmarks.network.home import Home
from benchmarks.network.homes import DEAF_PORT, WITNESSES, Laboratory
from benchmarks.network.meeting_probe import meet
from benchmarks.network.namespaces import socket_in
from benchmarks.network.ports import (
    FAMILIES,
    IN,
    REFUSED,
    TIMEOUT_S,
    Place,
    Port,
    ProbeFailed,
    address_of,
    answer_timeout_s,
    answer_to,
    seen_by,
)
from benchmarks.network.routers import By, can_meet

PROBES_AT_ONCE = 8
"""Probes mostly wait for SYNs that were swallowed."""

ETHERTYPES = {socket.AF_INET: 0x0800, socket.AF_INET6: 0x86DD}
TCP_START, SYN, ACK = struct.Struct(">HH9xB"), 0x02, 0x10
"""The ports and the flags of a TCP header."""


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """The observed behaviour of a router towards a node; `hairpins` is None without another node in the home."""

    mapping: By
    filtering: By
    rejects: bool
    hairpins: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The results of a probe: behaviours by node and address family, and which pairs of nodes can connect."""

    behaviours: dict[tuple[str, socket.AddressFamily], Behaviour]
    meetings: dict[tuple[str, str], bool]


def check(lab: Laboratory) -> Seen:
    """Probe every router, its daemon, and every pair of nodes of different homes. Raises ProbeFailed."""
    nodes = [
        (home, home.nodes[0], family)
        for home in lab.homes
        for family in FAMILIES
        if address_of(lab, home.nodes[0], family)
    ]
    pairs = [pair for pair in combinations(lab.homes, 2) if not _collide(lab, *pair)]
    with ThreadPoolExecutor(PROBES_AT_ONCE) as pool:
        behaviours = list(pool.map(lambda one: observe(lab, one[1], one[2]), nodes))
        for (home, node, family), behaviour in zip(nodes, behaviours, strict=True):
            _compare(home, node, family, behaviour)
        list(pool.map(lambda home: check_daemon(lab, home), lab.homes))
        meetings = list(pool.map(lambda pair: meet(lab, pair[0].nodes[0], pair[1].nodes[0]), pairs))
    for (one, other), met in zip(pairs, meetings, strict=True):
        if met != can_meet(one.kind, other.kind):
            words = "should not connect, but did" if met else "should connect, but did not"
            raise ProbeFailed(f"{one.name} ({one.kind.name}) and {other.name} ({other.kind.name}) {words}")
    return Seen(
        behaviours={(node, family): seen for (_, node, family), seen in zip(nodes, behaviours, strict=True)},
        meetings={(one.name, other.name): met for (one, other), met in zip(pairs, meetings, strict=True)},
    )


def _collide(lab: Laboratory, one: Home, other: Home) -> bool:
    """Return whether it is chance if two homes connect: both routers reject SYNs that did not cross, without delay."""
    return one.kind.rejects and other.kind.rejects and lab.round_trip_s(one.nodes[0], other.nodes[0]) == 0


def _compare(home: Home, node: str, family: int, seen: Behaviour) -> None:
    """Raise ProbeFailed if a router does not behave as its kind does."""
    kind = home.kind
    hairpins = None if seen.hairpins is None else kind.hairpins
    for what, expected, found in (
        ("mapping", kind.mapping.name, seen.mapping.name),
        ("filtering", kind.filtering.name, seen.filtering.name),
        ("rejects", kind.rejects, seen.rejects),
        ("hairpins", hairpins, seen.hairpins),
    ):
        if expected != found:
            version = "IPv4" if family == socket.AF_INET else "IPv6"
            raise ProbeFailed(
                f"the router of {node} ({kind.name}, {version}) should have {what}: {expected}, "
                f"and was seen to have {what}: {found}"
            )


def observe(lab: Laboratory, node: str, family: socket.AddressFamily) -> Behaviour:
    """Observe how the routers between a node and the internet behave. Raises ProbeFailed."""
    mapping, seen_from = _observe_mapping(lab, node, family)
    same_port, other_port, other_host = answers = _observe_filtering(lab, node, family, seen_from)
    match [answer == IN for answer in answers]:
        case [True, True, True]:
            filtering = By.NOTHING
        case [True, True, False]:
            filtering = By.ADDRESS
        case [True, False, False]:
            filtering = By.PORT
        case _:
            raise ProbeFailed(
                f"the router of {node} filters as no kind does: a SYN from the port that it had sent to was "
                f"{same_port}, from another port of that host {other_port}, from another host {other_host}"
            )
    return Behaviour(
        mapping=mapping,
        filtering=filtering,
        rejects=REFUSED in answers,
        hairpins=_observe_hairpin(lab, node) if family == socket.AF_INET else None,
    )


def _observe_mapping(lab: Laboratory, node: str, family: socket.AddressFamily) -> tuple[By, str]:
    """Return what the outside port of a node depends on, and its outside address."""
    east, west = WITNESSES
    with (
        Port(lab, node, family) as mine,
        Port(lab, east, family) as here,
        Port(lab, east, family) as beside,
        Port(lab, west, family) as there,
    ):
        first, second, third = (seen_by(mine, witness) for witness in (here, beside, there))
    if len({first[0], second[0], third[0]}) > 1:
        raise ProbeFailed(f"{node} is seen at several addresses: {first[0]}, {second[0]}, {third[0]}")
    if first != second:
        return By.PORT, first[0]
    return (By.NOTHING if first == third else By.ADDRESS), first[0]


def _observe_filtering(lab: Laboratory, node: str, family: socket.AddressFamily, seen_from: str) -> list[str]:
    """Return the answers to SYNs from the port that a node sent to, from another port of that host, and from another
    host.

    The node sends to a port that swallows SYNs, since a connection would block another between the same ports. It keeps
    sending: Linux drops an answer whose sequence numbers are not those of the SYN that opened the mapping.
    """
    east, west = WITNESSES
    with (
        Port(lab, node, family) as mine,
        Port(lab, east, family, DEAF_PORT) as same_port,
        Port(lab, east, family) as other_port,
        Port(lab, west, family) as other_host,
    ):
        with _sniffing(lab, east, family) as syns:
            mine.connect(same_port.place)
            port = next((sport for host, sport in syns if host == seen_from), None)
        if port is None:
            raise ProbeFailed(f"no SYN of {node} came to {east}, a public host")
        knocks = [one.connect((seen_from, port)) for one in (same_port, other_port, other_host)]
        ends = time.monotonic() + answer_timeout_s(lab, node, east)
        return [answer_to(knock, ends - time.monotonic()) for knock in knocks]


def _observe_hairpin(lab: Laboratory, node: str) -> bool | None:
    """Return whether a node reaches the outside address of another node of its home; None without another node."""
    home = lab.home_of(node)
    others = [one for one in home.nodes if one != node] if home is not None and not home.kind.is_public else []
    if not others:
        return None
    family = socket.AF_INET
    with Port(lab, node, family) as mine, Port(lab, others[0], family) as its, Port(lab, WITNESSES[0], family) as east:
        return answer_to(mine.connect(seen_by(its, east)), TIMEOUT_S) == IN


@contextmanager
def _sniffing(lab: Laboratory, witness: str, family: socket.AddressFamily) -> Iterator[Iterator[Place]]:
    """Yield the places from which SYNs come to a witness's deaf port, until none came for TIMEOUT_S."""
    ethertype = ETHERTYPES[family]
    with socket_in(lab.namespace(witness), socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ethertype)) as packets:
        packets.settimeout(TIMEOUT_S)
        yield _deaf_syns(packets, family)


def _deaf_syns(packets: socket.socket, family: socket.AddressFamily) -> Iterator[Place]:
    with suppress(TimeoutError):
        while True:
            packet = packets.recv(2048)
            if family == socket.AF_INET:
                size, protocol, source = (packet[0] & 15) * 4, packet[9], packet[12:16]
            else:
                size, protocol, source = 40, packet[6], packet[8:24]
            if protocol == socket.IPPROTO_TCP and len(packet) >= size + TCP_START.size:
                sport, dport, flags = TCP_START.unpack_from(packet, size)
                if dport == DEAF_PORT and flags & (SYN | ACK) == SYN:
                    yield socket.inet_ntop(family, source), sport
