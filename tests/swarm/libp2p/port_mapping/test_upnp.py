"""Check the output of the process that speaks UPnP, and its handling of descriptions that lead elsewhere."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from swarm.libp2p.port_mapping.gateway_client import GatewayClient, open_client
from swarm.libp2p.port_mapping.gateways import Gateway
from swarm.libp2p.port_mapping.outcomes import Answer, Granted, NoAnswer, Refused
from swarm.libp2p.port_mapping.upnp import MAX_REPLY_BYTES, UpnpWay, _parse
from swarm.libp2p.sockets.addresses import Address

DESCRIPTION = """<?xml version="1.0"?>
<root xmlns="urn:schemas-upnp-org:device-1-0"><specVersion><major>1</major><minor>0</minor></specVersion>
<device><deviceType>urn:schemas-upnp-org:device:InternetGatewayDevice:1</deviceType>
<serviceList><service>
<serviceType>urn:schemas-upnp-org:service:WANIPConnection:1</serviceType>
<serviceId>urn:upnp-org:serviceId:WANIPConn1</serviceId>
<controlURL>{control}</controlURL><eventSubURL>/event</eventSubURL><SCPDURL>/scpd.xml</SCPDURL>
</service></serviceList></device></root>
"""


@pytest.mark.parametrize(
    "output",
    [b"", b"{", b"[1]", b"1", b"\xff", b'{"a": ' + b"[" * 3000, b" " * (MAX_REPLY_BYTES + 1)],
)
def test_what_is_no_reply_is_silence(output: bytes) -> None:
    assert _parse(output) is None


@asynccontextmanager
async def client() -> AsyncIterator[GatewayClient]:
    opened = await open_client(Gateway(host=ipaddress.ip_address("127.0.0.1"), interface="lo"))
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("host", "port"), [("30.77.0.1", 0), ("30.77.0.1", 65536), ("::1", 80), ("0.0.0.0", 80), ("<script>", 80)]
)
async def test_a_grant_that_nobody_can_dial_is_none(host: str, port: int) -> None:
    async with client() as opened:
        way = UpnpWay(client=opened, internal_port=4001, url="http://127.0.0.1/")
        assert isinstance(way._granted(port, host, 1200), Refused)


async def ask(served: bytes, *, endless: bool = False) -> Answer:
    """Ask a gateway on loopback that answers every request so, again and again if it is endless."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some(4096)
            try:
                await stream.send_all(served)
                while endless:
                    await stream.send_all(b"<a>" * 100_000)
            except trio.BrokenResourceError:
                pass

    async with client() as opened, trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        way = UpnpWay(client=opened, internal_port=4001, url=f"http://127.0.0.1:{port}/root.xml")
        answer = await way.ask(4001, 1200)
        nursery.cancel_scope.cancel()
    return answer


def page(control: str) -> bytes:
    return b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + DESCRIPTION.format(control=control).encode()


async def test_a_control_url_elsewhere_is_not_called() -> None:
    called = trio.Event()

    async def be_called(stream: trio.SocketStream) -> None:
        called.set()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, be_called, 0, host="127.0.0.2"))
        answer = await ask(page(f"http://127.0.0.2:{listeners[0].socket.getsockname()[1]}/control"))
        nursery.cancel_scope.cancel()
    assert isinstance(answer, Refused)
    assert "control URL that is not at the router" in answer.why
    assert not called.is_set()


@pytest.mark.parametrize("served", [b"", b"HTTP/1.1 404 Not Found\r\n\r\n", b"\xff" * 5000, page("/control")])
async def test_garbage_grants_nothing(served: bytes) -> None:
    assert isinstance(await ask(served), Refused)


async def test_an_answer_without_end_ends() -> None:
    """The process reaches the bound of its memory, or its time."""
    answer = await ask(b"HTTP/1.1 200 OK\r\n\r\n<root>", endless=True)
    assert isinstance(answer, Refused | NoAnswer)


async def test_a_gateway_that_hangs_is_left(autojump_clock: trio.testing.MockClock) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        async with client() as opened:
            way = UpnpWay(client=opened, internal_port=1, url=f"http://127.0.0.1:{listening.getsockname()[1]}/root.xml")
            assert isinstance(await way.ask(1, 1), NoAnswer)


def test_a_grant_is_an_address() -> None:
    """What `_granted` builds cannot be built wrong."""
    with pytest.raises(ValueError, match="port 0"):
        Granted(external=Address(kind="ip4", host="30.77.0.1", port=0), lifetime_s=1.0)
