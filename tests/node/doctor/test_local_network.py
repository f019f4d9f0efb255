"""Read this machine's own view of its network."""

from __future__ import annotations

import ipaddress

from node.doctor.local_network import read_local_network


async def test_only_addresses_beyond_ones_own_links() -> None:
    found = await read_local_network()
    for text, number in ((found.ip4, 4), (found.ip6, 6)):
        for host in map(ipaddress.ip_address, text):
            assert host.version == number
            assert not host.is_loopback
            assert not host.is_link_local
