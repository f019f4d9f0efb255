"""Dial back on loopback, which counts as public here: which peers, at what cost, with what result."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import cast

import pytest
import trio

from swarm.libp2p import open_libp2p
from swarm.libp2p.connection import Connection
from swarm.libp2p.host import Host
from swarm.libp2p.reachability.autonat import autonat_pb2 as pb
from swarm.libp2p.reachability.autonat.client import Verdict, Word
from swarm.libp2p.reachability.autonat.server import DIAL_BACK, DIAL_REQUEST, MIN_PROOF_BYTES, REQUESTS_OF_PEER
from swarm.libp2p.reachability.multiaddrs import to_bytes
from swarm.libp2p.reachability.wire import framed, receive
from swarm.libp2p.sockets.addresses import Address, parse_address
from swarm.transport.interface import Stream, StreamBroken

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
NOBODY = Address(kind="ip4", host="127.0.0.1", port=1)
"""Port 1, tcpmux: nobody has run it for decades."""


@asynccontextmanager
async def host(seed: int) -> AsyncIterator[Host]:
    async with open_libp2p(bytes([seed]) * 32, [LOOPBACK]) as transport:
        one = cast(Host, transport)
        one.reaching.dial_backs.may_dial = lambda address: address.port != 0
        yield one


@asynccontextmanager
async def asking() -> AsyncIterator[tuple[Host, Host, Connection]]:
    """Yield the host that is asked, the host that asks, and the connection on which it does."""
    async with host(1) as server, host(2) as asker:
        await asker.dial(server.addresses())
        connection = asker.open_connection(server.peer_id)
        assert connection is not None
        yield server, asker, connection


def own_address(one: Host) -> Address:
    return replace(parse_address(one.addresses()[0]), peer=None)


async def test_an_address_at_which_we_are_is_reached() -> None:
    async with asking() as (server, asker, connection):
        address = own_address(asker)
        assert await asker.reaching.own_reach.questions.ask(connection, [address]) == Verdict(
            address=address, word=Word.REACHED
        )
        assert server.connected_peers() == {asker.peer_id}
        assert not server._circuits, "the connection made for the test must be closed"


async def test_an_address_at_which_nobody_is_is_not_reached() -> None:
    async with asking() as (_, asker, connection):
        assert await asker.reaching.own_reach.questions.ask(connection, [NOBODY]) == Verdict(
            address=NOBODY, word=Word.NOT_REACHED
        )


async def test_an_address_at_which_somebody_else_is_is_not_reached() -> None:
    async with asking() as (server, asker, connection):
        address = own_address(server)
        assert await asker.reaching.own_reach.questions.ask(connection, [address]) == Verdict(
            address=address, word=Word.NOT_REACHED
        )


async def test_the_first_address_that_may_be_dialled_is_dialled_and_no_other() -> None:
    async with asking() as (_, asker, connection):
        addresses = [Address(kind="ip4", host="127.0.0.1", port=0), NOBODY, own_address(asker)]
        assert await asker.reaching.own_reach.questions.ask(connection, addresses) == Verdict(
            address=NOBODY, word=Word.NOT_REACHED
        )


async def test_where_nothing_may_be_dialled_nothing_is_said() -> None:
    async with asking() as (server, asker, connection):
        server.reaching.dial_backs.may_dial = lambda address: False
        verdict = await asker.reaching.own_reach.questions.ask(connection, [own_address(asker)])
        assert verdict == Verdict(address=None, word=Word.NONE)


async def test_who_has_us_dial_elsewhere_sends_more_than_that_costs_first() -> None:
    async with asking() as (_, asker, connection):
        elsewhere = to_bytes("/ip4/127.0.0.2/tcp/1")
        request = pb.Message(dialRequest=pb.DialRequest(addrs=[elsewhere], nonce=7))
        stream = await asker.open_stream_on(connection, DIAL_REQUEST, framed(request))
        wanted = (await receive(stream, pb.Message)).dialDataRequest
        assert wanted.addrIdx == 0
        assert wanted.numBytes >= MIN_PROOF_BYTES
        data = framed(pb.Message(dialDataResponse=pb.DialDataResponse(data=bytes(4096))))
        for _ in range(wanted.numBytes // 4096 + 1):
            await stream.send_all(data)
        response = (await receive(stream, pb.Message)).dialResponse
        assert (response.status, response.dialStatus) == (pb.DialResponse.OK, pb.E_DIAL_ERROR)


async def test_our_own_questions_pay_that_price() -> None:
    async with asking() as (_, asker, connection):
        elsewhere = Address(kind="ip4", host="127.0.0.2", port=1)
        said = await asker.reaching.own_reach.questions.ask(connection, [elsewhere])
        assert said == Verdict(address=elsewhere, word=Word.NOT_REACHED)


async def test_a_bill_for_nothing_ends_the_request() -> None:
    async with asking() as (_, asker, connection):
        request = pb.Message(dialRequest=pb.DialRequest(addrs=[to_bytes("/ip4/127.0.0.2/tcp/1")], nonce=7))
        stream = await asker.open_stream_on(connection, DIAL_REQUEST, framed(request))
        await receive(stream, pb.Message)
        await stream.send_all(framed(pb.Message(dialDataResponse=pb.DialDataResponse())))
        with pytest.raises(StreamBroken):
            await receive(stream, pb.Message)


async def test_a_peer_may_not_ask_for_ever() -> None:
    async with asking() as (_, asker, connection):
        words = [(await asker.reaching.own_reach.questions.ask(connection, [NOBODY])).word for _ in range(20)]
        assert words.count(Word.NOT_REACHED) <= REQUESTS_OF_PEER.burst + 1
        assert words[-1] is Word.NONE


async def test_a_dial_that_is_claimed_and_brings_no_number_is_not_believed() -> None:
    async with asking() as (server, asker, connection):

        async def claim(stream: Stream) -> None:
            await receive(stream, pb.Message)
            response = pb.DialResponse(status=pb.DialResponse.OK, addrIdx=0, dialStatus=pb.OK)
            await stream.send_all(framed(pb.Message(dialResponse=response)))

        server.handle(DIAL_REQUEST, claim)
        said = await asker.reaching.own_reach.questions.ask(connection, [own_address(asker)])
        assert said.word is Word.NONE


async def test_a_number_that_nobody_waits_for_is_not_thanked_for() -> None:
    async with asking() as (server, asker, _):
        connection = server.open_connection(asker.peer_id)
        assert connection is not None
        stream = await server.open_stream_on(connection, DIAL_BACK, framed(pb.DialBack(nonce=1)))
        with trio.fail_after(10):
            assert await stream.receive_some(1) == b""


@pytest.mark.parametrize(
    ("message", "raw"),
    [
        (pb.Message(dialRequest=pb.DialRequest(addrs=[b"\x01"], nonce=1)), "0e 0a0c 0a0101 110100000000000000"),
        (pb.Message(dialDataRequest=pb.DialDataRequest(addrIdx=1, numBytes=30_000)), "08 1a06 0801 10b0ea01"),
        (pb.Message(dialDataResponse=pb.DialDataResponse(data=b"\x00")), "05 2203 0a0100"),
        (
            pb.Message(dialResponse=pb.DialResponse(status=pb.DialResponse.OK, addrIdx=1, dialStatus=pb.E_DIAL_ERROR)),
            "09 1207 08c801 1001 1864",
        ),
        (pb.DialBack(nonce=1), "09 090100000000000000"),
        (pb.DialBackResponse(status=pb.DialBackResponse.OK), "00"),
    ],
)
def test_messages_are_the_specifications_byte_for_byte(
    message: pb.Message | pb.DialBack | pb.DialBackResponse, raw: str
) -> None:
    assert framed(message) == bytes.fromhex(raw)
