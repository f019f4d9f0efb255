"""PCP and NAT-PMP with a gateway on loopback that answers as a test tells it to, over real sockets."""

from __future__ import annotations

import ipaddress
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count

import pytest
import trio

from swarm.libp2p.port_mapping import pcp
from swarm.libp2p.port_mapping.datagram_ways import NatPmpWay, PcpWay, find_spoken
from swarm.libp2p.port_mapping.gateway_client import GatewayClient, open_client
from swarm.libp2p.port_mapping.gateways import Gateway
from swarm.libp2p.port_mapping.lease import Forgot, Moved
from swarm.libp2p.port_mapping.outcomes import Granted, MappedBy, NoAnswer, Refused
from swarm.libp2p.sockets.addresses import Address

Answering = Callable[[bytes], Sequence[bytes]]

OUTSIDE = Address(kind="ip4", host="30.77.0.1", port=20000)

_hosts = count(2)


@asynccontextmanager
async def gateway(answering: Answering) -> AsyncIterator[GatewayClient]:
    """A client of a gateway that sends what `answering` returns for each request; each has an address of its own."""
    host = f"127.77.0.{next(_hosts)}"
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        try:
            await listening.bind((host, pcp.PORT))
        except OSError as error:  # macOS has 127.0.0.1 alone
            pytest.skip(f"no second loopback address: {error}")
        client = await open_client(Gateway(host=ipaddress.ip_address(host), interface="lo"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_serve, listening, answering)
            yield client
            nursery.cancel_scope.cancel()
        client.close()


async def _serve(listening: trio.socket.SocketType, answering: Answering) -> None:
    while True:
        request, sender = await listening.recvfrom(2048)
        for answer in answering(request):
            await listening.sendto(answer, sender)


class Pcp:
    """Answers PCP, with an epoch that the test sets."""

    def __init__(self, *, result: int = 0, lifetime_s: int = 600, port: int = 20000) -> None:
        self.epoch, self.result, self.lifetime_s, self.port = 1000, result, lifetime_s, port
        self.asked: list[bytes] = []

    def __call__(self, request: bytes) -> list[bytes]:
        if request[0] != pcp.VERSION:
            return []
        self.asked.append(request)
        lifetime_s = min(self.lifetime_s, int.from_bytes(request[4:8], "big"))
        header = struct.pack("!BBxBLL12x", 2, 0x80 | request[1], self.result, lifetime_s, self.epoch)
        if request[1] == pcp.Opcode.ANNOUNCE:
            return [header]
        outside = b"\0" * 10 + b"\xff\xff" + ipaddress.IPv4Address("30.77.0.1").packed
        return [header + request[24:42] + struct.pack("!H", self.port) + outside]


class NatPmp:
    """Answers NAT-PMP, and PCP as RFC 6886 section 3.5 wants it, or not at all."""

    def __init__(self, *, knows_pcp: bool) -> None:
        self.epoch, self.host, self._knows_pcp = 1000, "30.77.0.1", knows_pcp

    def __call__(self, request: bytes) -> list[bytes]:
        if request[0] != 0:
            return [struct.pack("!BBHL", 0, 0x80 | request[1], 1, self.epoch)] if self._knows_pcp else []
        head = struct.pack("!BBHL", 0, 0x80 | request[1], 0, self.epoch)
        if request[1] == 0:
            return [head + ipaddress.IPv4Address(self.host).packed]
        return [head + request[4:6] + struct.pack("!HL", 20000, int.from_bytes(request[8:12], "big"))]


async def test_pcp_grants_a_port() -> None:
    router = Pcp()
    async with gateway(router) as client:
        assert await find_spoken(client) is MappedBy.PCP
        way = PcpWay(client=client, internal_port=4001)
        assert await way.ask(4001, 1200) == Granted(external=OUTSIDE, lifetime_s=600)
        assert await way.ask(20000, 1200) == Granted(external=OUTSIDE, lifetime_s=600)
        await way.release()
    first, renewed, deleted = router.asked[-3:]
    assert first[24:36] == renewed[24:36] == deleted[24:36]  # the nonce
    assert renewed[44:60].endswith(ipaddress.IPv4Address("30.77.0.1").packed)
    assert deleted[4:8] == bytes(4)
    assert deleted[42:44] == bytes(2)


async def test_pcp_refuses_a_port() -> None:
    async with gateway(Pcp(result=pcp.Result.USER_EX_QUOTA, lifetime_s=30)) as client:
        answer = await PcpWay(client=client, internal_port=4001).ask(4001, 1200)
    assert answer == Refused(why="this machine has all the mappings that the router grants it", wait_s=30)


async def test_an_address_of_the_other_version_is_none_of_ours() -> None:
    router = Pcp()

    def answering(request: bytes) -> list[bytes]:
        return [router(request)[0][:44] + ipaddress.IPv6Address("2a00:77::1").packed]

    async with gateway(answering) as client:
        answer = await PcpWay(client=client, internal_port=4001).ask(4001, 1200)
    assert answer == Refused(why="the router grants 2a00:77::1, which is not of our IP version")


async def test_a_taken_port_is_a_conflict() -> None:
    async with gateway(Pcp(result=pcp.Result.CANNOT_PROVIDE_EXTERNAL)) as client:
        answer = await PcpWay(client=client, internal_port=4001).ask(4001, 1200)
    assert isinstance(answer, Refused)
    assert answer.is_conflict


async def test_a_restart_is_seen_in_the_epoch() -> None:
    router = Pcp()
    async with gateway(router) as client:
        way = PcpWay(client=client, internal_port=4001)
        await way.ask(4001, 1200)
        assert await way.look() is None
        router.epoch = 3
        assert isinstance(await way.look(), Forgot)
        assert await way.look() is None


async def test_answers_to_others_and_garbage_are_passed_over() -> None:
    router = Pcp()

    def answering(request: bytes) -> list[bytes]:
        good = router(request)[0]
        foreign_nonce = good[:24] + bytes(12) + good[36:]
        foreign_port = good[:40] + b"\x00\x50" + good[42:]
        useless = good[:42] + bytes(18)
        return [b"", b"\xff" * 2000, request, foreign_nonce, foreign_port, useless, good]

    async with gateway(answering) as client:
        answer = await PcpWay(client=client, internal_port=4001).ask(4001, 1200)
    assert answer == Granted(external=OUTSIDE, lifetime_s=600)


async def test_a_flood_is_read_no_longer_than_the_timeout(autojump_clock: trio.testing.MockClock) -> None:
    async with gateway(lambda request: [b"\xff" * 60] * 500) as client:
        answer = await PcpWay(client=client, internal_port=4001).ask(4001, 1200)
    assert answer == NoAnswer(why="the router does not answer PCP")


async def test_another_senders_datagrams_are_not_heard() -> None:
    """The stranger answers first, and grants what the router refuses."""
    router, stranger = Pcp(result=pcp.Result.NOT_AUTHORIZED), Pcp()
    clients: list[GatewayClient] = []

    def answering(request: bytes) -> list[bytes]:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as elsewhere:
            elsewhere.bind(("127.77.1.1", pcp.PORT))
            elsewhere.sendto(stranger(request)[0], clients[0]._socket.getsockname())
        return router(request)

    async with gateway(answering) as client:
        clients.append(client)
        answer = await PcpWay(client=client, internal_port=4001).ask(4001, 1200)
    assert answer == Refused(why="the router does not allow it", wait_s=600)


@pytest.mark.parametrize("knows_pcp", [True, False])
async def test_nat_pmp_is_found_where_pcp_is_unknown(knows_pcp: bool) -> None:
    router = NatPmp(knows_pcp=knows_pcp)
    async with gateway(router) as client:
        assert await find_spoken(client) is MappedBy.NAT_PMP
        way = NatPmpWay(client=client, internal_port=4001)
        assert await way.ask(4001, 1200) == Granted(external=OUTSIDE, lifetime_s=1200)
        assert await way.look() is None
        router.host = "30.77.0.2"
        assert await way.look() == Moved(host="30.77.0.2")
        router.epoch = 0
        assert isinstance(await way.look(), Forgot)


async def test_a_gateway_without_either_is_known_at_once() -> None:
    """Nothing listens there, and its kernel says so."""
    client = await open_client(Gateway(host=ipaddress.ip_address("127.0.0.1"), interface="lo"))
    assert await find_spoken(client) is None
    client.close()


async def test_a_silent_gateway_costs_the_timeout_and_no_more(autojump_clock: trio.testing.MockClock) -> None:
    async with gateway(lambda request: []) as client:
        assert await find_spoken(client) is None
        assert await PcpWay(client=client, internal_port=1).ask(1, 1) == NoAnswer(why="the router does not answer PCP")
    assert trio.current_time() <= 2 * 3.75 + 1e-6
