"""Every transport against the same checks."""

from __future__ import annotations

import hashlib
import socket
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

import pytest

from protocol.core.ids import PeerId
from swarm.libp2p import open_libp2p
from swarm.libp2p.security import NOISE, TLS
from swarm.testing.memory_transport import MemoryNetwork
from swarm.testing.transport_conformance import CHECKS, Check, Harness, run_check
from swarm.transport.interface import Transport


def has_ipv6_loopback() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


@dataclass
class MemoryHarness:
    network: MemoryNetwork = field(default_factory=MemoryNetwork)

    def node(self, name: str, *, listens: bool = True) -> AbstractAsyncContextManager[Transport]:
        return self.network.node(name, listens=listens)

    def nowhere(self, peer: PeerId) -> str:
        return f"/memory/nowhere/p2p/{peer}"

    def misdirected(self, address: str, peer: PeerId) -> str:
        return address.partition("/p2p/")[0] + f"/p2p/{peer}"


@dataclass
class Libp2pHarness:
    listen: str
    security: str = TLS
    cap_bits_per_s: float | None = None

    def node(self, name: str, *, listens: bool = True) -> AbstractAsyncContextManager[Transport]:
        seed = hashlib.sha256(name.encode()).digest()
        return open_libp2p(
            seed,
            [self.listen] if listens else [],
            security=[self.security],
            upload_bits_per_s=self.cap_bits_per_s,
            download_bits_per_s=self.cap_bits_per_s,
        )

    def nowhere(self, peer: PeerId) -> str:
        return self.listen.removesuffix("/0") + f"/1/p2p/{peer}"  # port 1, tcpmux: nobody has run it for decades

    def misdirected(self, address: str, peer: PeerId) -> str:
        return address.partition("/p2p/")[0] + f"/p2p/{peer}"


CAP_BITS_PER_S = 400e6
"""Both ways: loopback is several times as fast, so the cap is felt, and 8 MiB take a sixth of a second."""

HARNESSES = [
    pytest.param(MemoryHarness, id="memory"),
    pytest.param(lambda: Libp2pHarness("/ip4/127.0.0.1/tcp/0"), id="libp2p-ip4"),
    pytest.param(lambda: Libp2pHarness("/ip4/127.0.0.1/tcp/0", NOISE), id="libp2p-ip4-noise"),
    pytest.param(lambda: Libp2pHarness("/ip4/127.0.0.1/tcp/0", cap_bits_per_s=CAP_BITS_PER_S), id="libp2p-ip4-capped"),
    pytest.param(
        lambda: Libp2pHarness("/ip6/::1/tcp/0"),
        id="libp2p-ip6",
        marks=pytest.mark.skipif(not has_ipv6_loopback(), reason="this machine has no IPv6 loopback"),
    ),
]


@pytest.mark.trio
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("make_harness", HARNESSES)
async def test_conformance(make_harness: type[Harness], check: Check) -> None:
    await run_check(check, make_harness())
