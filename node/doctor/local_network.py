"""Read this machine's own addresses and routers from the system, without sending anything."""

from __future__ import annotations

import ipaddress
from contextlib import suppress

import psutil

from node.doctor.findings import LocalNetwork
from swarm.libp2p import find_gateways


async def read_local_network() -> LocalNetwork:
    """Return the addresses of the interfaces, and the routers. Waits for a program on systems without /proc."""
    found: dict[int, list[str]] = {4: [], 6: []}
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            with suppress(ValueError):  # a hardware address, or a link-local one with a scope
                host = ipaddress.ip_address(entry.address)
                if not (host.is_loopback or host.is_link_local):
                    found[host.version].append(str(host))
    gateways = [str(gateway.host) for gateway in await find_gateways()]
    return LocalNetwork(ip4=tuple(found[4]), ip6=tuple(found[6]), gateways=tuple(gateways))
