"""Find the routers that lead out of this machine's networks, in the kernel's tables.

On Linux they are in /proc/net/route and /proc/net/ipv6_route. Elsewhere (macOS) `netstat -rn` lists them, with columns
that have not changed for decades. Lines that cannot be read are skipped. The parsers are pure; `find_gateways` reads.

Invariants:

- A gateway is an address of one machine, never of a link or of many machines; at most MAX_GATEWAYS are returned.
- A link-local address comes with its interface, without which it means nothing.
"""

from __future__ import annotations

import ipaddress
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import trio

from swarm.libp2p.port_mapping.outcomes import IPAddress

MAX_GATEWAYS = 4
"""Gateways returned. A laptop with cable and radio has two of each IP version."""

MAX_OWN_ADDRESSES = 4
"""IPv6 addresses of one interface to open: a stable one, and temporary ones that last some days."""

NETSTAT_S = 5.0
MAX_TABLE_BYTES = 1 << 20
"""Bytes. A routing table may be a provider's, with a million lines. Default routes come early in it."""

RTF_UP, RTF_GATEWAY = 0x1, 0x2
"""Flags from Linux' <linux/route.h>."""


@dataclass(frozen=True, kw_only=True)
class Gateway:
    """A router, and the interface that leads to it."""

    host: IPAddress
    interface: str

    def __str__(self) -> str:
        return f"{self.host}%{self.interface}" if self.host.is_link_local else str(self.host)


async def find_gateways() -> list[Gateway]:
    """Return the default gateways, the preferred ones first. Waits for `netstat` if there is no /proc."""
    if sys.platform.startswith("linux"):
        return _first(parse_route(_read("/proc/net/route")) + parse_ipv6_route(_read("/proc/net/ipv6_route")))
    try:
        with trio.fail_after(NETSTAT_S):
            done = await trio.run_process(
                ["netstat", "-rn"], capture_stdout=True, stderr=subprocess.DEVNULL, check=False
            )
    except (OSError, trio.TooSlowError):
        return []
    return _first(parse_netstat(done.stdout[:MAX_TABLE_BYTES].decode("ascii", "replace")))


def own_ipv6_addresses(interface: str) -> list[ipaddress.IPv6Address]:
    """Return the addresses of an interface that others could dial."""
    try:
        entries = psutil.net_if_addrs().get(interface, [])
    except OSError:
        return []
    found = []
    for entry in entries:
        try:
            host = ipaddress.ip_address(entry.address)
        except ValueError:
            continue  # a hardware address, or a link-local one with its scope
        if isinstance(host, ipaddress.IPv6Address) and host.is_global:
            found.append(host)
    return sorted(found)[:MAX_OWN_ADDRESSES]


def parse_route(table: str) -> list[Gateway]:
    """Return the gateways of /proc/net/route: hexadecimal, in this machine's byte order, the lowest metric first."""
    found: list[tuple[int, Gateway]] = []
    for line in table.splitlines()[1:]:
        try:
            interface, destination, gateway, flags, _, _, metric, mask, *_ = line.split()
            is_default = int(destination, 16) == int(mask, 16) == 0
            host = ipaddress.IPv4Address(int(gateway, 16).to_bytes(4, sys.byteorder))
            if is_default and int(flags, 16) & RTF_UP and int(flags, 16) & RTF_GATEWAY:
                found.append((int(metric), Gateway(host=host, interface=interface)))
        except (ValueError, OverflowError):
            continue
    return [gateway for _, gateway in sorted(found, key=lambda one: one[0])]


def parse_ipv6_route(table: str) -> list[Gateway]:
    """Return the gateways of /proc/net/ipv6_route: hexadecimal, in network byte order, the lowest metric first."""
    found: list[tuple[int, Gateway]] = []
    for line in table.splitlines():
        try:
            destination, prefix, _, _, gateway, metric, _, _, flags, interface = line.split()
            is_default = int(destination, 16) == int(prefix, 16) == 0
            host = ipaddress.IPv6Address(bytes.fromhex(gateway))
            if is_default and int(flags, 16) & RTF_UP and int(flags, 16) & RTF_GATEWAY:
                found.append((int(metric, 16), Gateway(host=host, interface=interface)))
        except (ValueError, OverflowError):
            continue
    return [gateway for _, gateway in sorted(found, key=lambda one: one[0])]


def parse_netstat(table: str) -> list[Gateway]:
    """Return the gateways of BSD's `netstat -rn`, in its order."""
    found = []
    for line in table.splitlines():
        match line.split():
            case ["default", gateway, flags, interface, *_] if "G" in flags and "U" in flags:
                try:
                    host = ipaddress.ip_address(gateway.partition("%")[0])
                except ValueError:
                    continue
                found.append(Gateway(host=host, interface=interface))
    return found


def _first(found: list[Gateway]) -> list[Gateway]:
    usable = [one for one in found if not (one.host.is_unspecified or one.host.is_loopback or one.host.is_multicast)]
    return list(dict.fromkeys(usable))[:MAX_GATEWAYS]


def _read(path: str) -> str:
    try:
        with Path(path).open(encoding="ascii", errors="replace") as file:
            return file.read(MAX_TABLE_BYTES)
    except OSError:
        return ""
