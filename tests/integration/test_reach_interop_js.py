"""Test our host with js-libp2p: identify, circuits without limits, AutoNAT v2 and the messages of DCUtR.

Tests of all implementations are in `test_reach_interop.py`.

js-libp2p does not punch over TCP: it dials from another port than the one on which it listens. On loopback, where no
router is in the way, that connects all the same, so what both ends say, and who is whose client, is tested in full.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
import trio
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch

from protocol.core.ids import PeerId
from protocol.reach import Way
from swarm.libp2p.connection import Connection
from swarm.libp2p.host import Host
from swarm.libp2p.reachability.autonat.client import Verdict, Word
from swarm.libp2p.reachability.autonat.server import DIAL_REQUEST
from swarm.libp2p.reachability.hole_punch import DCUTR
from swarm.libp2p.reachability.multiaddrs import to_bytes
from swarm.libp2p.reachability.relaying.relay import HOP, STOP, sign_voucher
from swarm.libp2p.reachability.wire import framed
from swarm.libp2p.security import Identity
from swarm.libp2p.sockets.addresses import Address, from_socket
from swarm.testing.transport_conformance import ECHO, echo, read_exactly
from swarm.transport.interface import Stream
from tests.support.partners.circuits import (
    LOOPBACK,
    UNTIL_S,
    circuit_from,
    connection_to,
    ours,
    ping,
    places,
    through,
)
from tests.support.partners.implementations import JS_NAMES
from tests.support.partners.js_peer import PUBLIC, JsError, JsPeer, js_name, js_peer
from tests.support.partners.programs import needs_js

pytestmark = needs_js

JS, OTHER_JS = 7, 8
each_security = pytest.mark.parametrize("security", JS_NAMES)

PUBLIC_LISTENING = (LOOPBACK, f"/ip4/{PUBLIC}/tcp/0")
UNANNOUNCED = ("/ip4/127.0.0.1/tcp/1",)
"""An address that a host announces so that no peer dials it there."""

Answer = Callable[[Host, Stream], Awaitable[None]]

CONNECT, SYNC = HolePunch.CONNECT, HolePunch.SYNC


async def reserve(host: Host, relay: Host) -> None:
    """Make `host` a member of a relay's swarm that is reached through the relay."""
    relay.trust(host.peer_id)
    await host.dial(relay.addresses())
    await host.reaching.circuits.reserve(relay.peer_id)


async def test_js_reads_our_voucher() -> None:
    relay = Identity.from_seed(bytes(32))
    async with js_peer(JS) as js:
        voucher = bytearray(sign_voucher(relay, js.peer, 2_000_000_000))
        assert await js.order("certify", envelope=voucher.hex(), domain="libp2p-relay-rsvp") == relay.peer_id
        voucher[-1] ^= 1
        with pytest.raises(JsError, match="not valid"):
            await js.order("certify", envelope=voucher.hex(), domain="libp2p-relay-rsvp")


async def test_a_relay_without_limits_makes_connections_like_any_other() -> None:
    """A circuit is limited only if the relay says so. Here it does not, and the circuit carries any amount."""
    async with js_peer(JS, limits=False) as relay, ours(1) as host, js_peer(OTHER_JS, relays=relay.addresses) as other:
        host.handle(ECHO, echo)
        await host.dial(relay.addresses)
        await host.reaching.circuits.reserve(relay.peer)
        assert not (await other.order("dial", address=through(relay.addresses[0], host.peer_id)))["limited"]
        assert await other.order("echo", peer=host.peer_id, size=300_000) == 300_000
        connection = host.open_connection(other.peer)
        assert connection is not None
        assert (connection.route.relay, connection.route.is_limited) == (relay.peer, False)


@each_security
async def test_what_js_learns_of_us_outside_of_circuits(security: str) -> None:
    async with js_peer(JS, security=[JS_NAMES[security]]) as js, ours(1) as host:
        await host.dial(js.addresses)
        await js.order("ping", peer=host.peer_id)  # it sends identify by itself before, and not twice at a time
        said = await js.order("identify", peer=host.peer_id)
        assert (said["peer"], said["agent"]) == (host.peer_id, "volery")
        assert {HOP, STOP, DIAL_REQUEST, DCUTR} <= set(said["protocols"])
        assert said["addresses"] == [address.partition("/p2p/")[0] for address in host.addresses()]
        assert said["observed"] == js.addresses[0].partition("/p2p/")[0]


@each_security
async def test_js_dials_us(security: str) -> None:
    async with js_peer(JS, security=[JS_NAMES[security]]) as js, ours(1) as host:
        told = await js.order("dial", address=host.addresses()[0])
        assert (told["encryption"], told["limited"]) == (security, False)
        await js.order("ping", peer=host.peer_id)


@each_security
async def test_what_js_learns_of_us_over_a_circuit(security: str) -> None:
    async with ours(1, members=[js_name(JS)]) as relay, ours(2) as host:
        await reserve(host, relay)
        async with js_peer(JS, relays=relay.addresses(), security=[JS_NAMES[security]]) as js:
            told = await js.order("dial", address=through(relay, host.peer_id))
            assert (told["encryption"], told["limited"]) == (security, True)
            await js.order("ping", peer=host.peer_id)
            said = await js.order("identify", peer=host.peer_id)
            assert (said["peer"], said["observed"]) == (host.peer_id, None)


async def test_what_js_learns_of_js_through_our_relay() -> None:
    async with (
        ours(1, members=[js_name(JS), js_name(OTHER_JS)]) as relay,
        js_peer(JS, relays=relay.addresses()) as target,
        js_peer(OTHER_JS) as source,
    ):
        told = await source.order("dial", address=through(relay, target.peer))
        assert told["limited"]
        await source.order("ping", peer=target.peer)
        said = await source.order("identify", peer=target.peer)
        assert said["peer"] == target.peer


# AutoNAT v2. Both sides take only PUBLIC for a public address.


def public_address(host: Host) -> Address:
    """Return the address on PUBLIC on which a host listens."""
    bound = [from_socket(listener.socket.getsockname()) for listener in host.listeners]
    return next(address for address in bound if address.host == PUBLIC)


async def test_js_dials_us_back() -> None:
    """It sees us at another address, so we send data for the dial."""
    async with js_peer(JS) as js, ours(1, listen=PUBLIC_LISTENING) as host:
        connection = await connection_to(host, js.addresses[0])
        said = await host.reaching.own_reach.questions.ask(connection, [public_address(host)])
        assert said == Verdict(address=public_address(host), word=Word.REACHED)


async def test_js_finds_nobody_where_nobody_is() -> None:
    async with js_peer(JS) as js, ours(1) as host:
        connection = await connection_to(host, js.addresses[0])
        nobody = Address(kind="ip4", host=PUBLIC, port=1)
        said = await host.reaching.own_reach.questions.ask(connection, [nobody])
        assert said == Verdict(address=nobody, word=Word.NOT_REACHED)


async def test_js_dials_back_to_no_address_that_is_not_public() -> None:
    async with js_peer(JS) as js, ours(1) as host:
        connection = await connection_to(host, js.addresses[0])
        said = await host.reaching.own_reach.questions.ask(connection, [Address(kind="ip4", host="127.0.0.1", port=1)])
        assert said == Verdict(address=None, word=Word.NONE)


async def test_we_dial_js_back() -> None:
    """It asks every peer that speaks AutoNAT about each public address on which it listens."""
    async with ours(1) as host, js_peer(JS, public=True) as js:
        host.reaching.dial_backs.may_dial = lambda address: address.host == PUBLIC
        await js.order("dial", address=host.addresses()[0])
        with trio.fail_after(UNTIL_S):
            while not (verified := await js.order("verified")):
                await trio.sleep(0.05)
        assert all(address.startswith(f"/ip4/{PUBLIC}/tcp/") for address in verified)


# DCUtR. js-libp2p is reached through a relay of ours, listens on PUBLIC, and says so.


@asynccontextmanager
async def behind_a_relay(
    *, is_reached: bool, answer: Answer | None = None
) -> AsyncIterator[tuple[Host, JsPeer, Connection]]:
    """Yield a host of ours, a peer of js-libp2p, and a circuit between them: from the peer if it reaches us, otherwise
    to it.

    `answer`, if given, handles the peer's streams of DCUtR.
    """
    async with ours(1, members=[js_name(JS)]) as relay, ours(2, listen=PUBLIC_LISTENING, announce=UNANNOUNCED) as host:
        host.reaching.meetings.puncher.seen_at = lambda: [public_address(host)]
        host.reaching.meetings.puncher.may_dial = lambda address: address.host == PUBLIC
        if answer is not None:
            host.handle(DCUTR, partial(answer, host))
        await reserve(host, relay)
        async with js_peer(JS, relays=relay.addresses(), public=True, punches=True) as js:
            if is_reached:
                await js.order("dial", address=through(relay, host.peer_id))
                yield host, js, await circuit_from(host, js.peer)
            else:
                yield host, js, await host.reaching.circuits.connect(relay.peer_id, js.peer)


async def directly(js: JsPeer, peer: PeerId) -> list[Any]:
    """Return the connections of a js-libp2p peer to `peer` that are no circuits."""
    return [one for one in await js.order("connections", peer=peer) if not one["limited"]]


async def read_message(stream: Stream) -> bytes:
    """Return one message as its bytes travel, with its length."""
    length = await read_exactly(stream, 1)
    if length[0] >= 0x80:
        length += await read_exactly(stream, 1)
        return length + await read_exactly(stream, length[0] & 0x7F | length[1] << 7)
    return length + await read_exactly(stream, length[0])


def body_of(raw: bytes) -> HolePunch:
    """Return a message's content, which follows its length."""
    return HolePunch.FromString(raw[2 if raw[0] >= 0x80 else 1 :])


async def test_messages_of_dcutr_are_those_of_js_byte_for_byte_where_it_is_reached() -> None:
    """js-libp2p opens the stream: its CONNECT, our CONNECT, its SYNC."""
    heard: list[bytes] = []
    done = trio.Event()

    async def answer(host: Host, stream: Stream) -> None:
        heard.append(await read_message(stream))
        await stream.send_all(framed(HolePunch(type=CONNECT, ObsAddrs=[to_bytes(str(public_address(host)))])))
        heard.append(await read_message(stream))
        done.set()

    async with behind_a_relay(is_reached=False, answer=answer):
        with trio.fail_after(UNTIL_S):
            await done.wait()
        connect = body_of(heard[0])
        assert heard[0] == framed(HolePunch(type=CONNECT, ObsAddrs=list(connect.ObsAddrs)))
        assert f"/ip4/{PUBLIC}" in places(connect.ObsAddrs)[0]
        assert heard[1] == framed(HolePunch(type=SYNC)) == bytes.fromhex("03 08ac02")


async def test_messages_of_dcutr_are_those_of_js_byte_for_byte_where_it_reaches_us() -> None:
    """We open the stream: our CONNECT, its CONNECT. At our SYNC it dials us."""
    async with behind_a_relay(is_reached=True) as (host, js, circuit):
        here = to_bytes(str(public_address(host)))
        stream = await host.open_stream_on(circuit, DCUTR, framed(HolePunch(type=CONNECT, ObsAddrs=[here])))
        raw = await read_message(stream)
        connect = body_of(raw)
        assert connect.type == CONNECT
        assert raw == framed(HolePunch(type=CONNECT, ObsAddrs=list(connect.ObsAddrs)))
        assert f"/ip4/{PUBLIC}" in places(connect.ObsAddrs)[0]
        await stream.send_all(framed(HolePunch(type=SYNC)))
        with trio.fail_after(UNTIL_S):
            await host.unless_met(js.peer, trio.sleep_forever)
        (direct,) = await directly(js, host.peer_id)
        assert direct["direction"] == "outbound"


async def test_a_circuit_from_js_becomes_a_direct_connection() -> None:
    async with behind_a_relay(is_reached=True) as (host, js, circuit):
        punched = await host.reaching.meetings.puncher.upgrade(circuit)
        assert (punched.why, punched.tries >= 1) == ("", True)
        await ping(host, await connection_to(host, f"{public_address(host)}/p2p/{js.peer}"))
        assert await directly(js, host.peer_id)


async def test_a_circuit_to_js_becomes_a_direct_connection() -> None:
    async with behind_a_relay(is_reached=False) as (host, js, _):
        with trio.fail_after(UNTIL_S):
            await host.unless_met(js.peer, trio.sleep_forever)
        connection = host.open_connection(js.peer)
        assert connection is not None
        await ping(host, connection)
        assert await directly(js, host.peer_id)


async def test_js_dials_us_where_it_can_instead_of_punching() -> None:
    """Over the circuit we say that we listen on PUBLIC."""
    async with ours(1, members=[js_name(JS)]) as relay, ours(2, listen=PUBLIC_LISTENING[1:]) as host:
        await reserve(host, relay)
        async with js_peer(JS, relays=relay.addresses(), public=True, punches=True) as js:
            await host.reaching.circuits.connect(relay.peer_id, js.peer)
            with trio.fail_after(UNTIL_S):
                await host.unless_met(js.peer, trio.sleep_forever)
            connection = host.open_connection(js.peer)
            assert connection is not None
            assert connection.route.way is Way.WAS_DIALLED


async def test_a_try_that_fails_is_followed_by_another_one() -> None:
    """At first we do not listen at the address that we announce."""
    nobody = Address(kind="ip4", host=PUBLIC, port=1)
    async with behind_a_relay(is_reached=True) as (host, js, circuit):
        said = iter([nobody])
        host.reaching.meetings.puncher.seen_at = lambda: [next(said, public_address(host))]
        punched = await host.reaching.meetings.puncher.upgrade(circuit)
        assert (punched.why, punched.tries >= 2) == ("", True)
        assert await directly(js, host.peer_id)


async def test_js_tries_again_where_a_try_failed() -> None:
    """It opens a stream for each try, though the specification has one for all."""
    tries: list[HolePunch] = []
    tried_again = trio.Event()
    nobody = Address(kind="ip4", host=PUBLIC, port=1)

    async def answer(_: Host, stream: Stream) -> None:
        tries.append(body_of(await read_message(stream)))
        if len(tries) == 2:
            tried_again.set()
        await stream.send_all(framed(HolePunch(type=CONNECT, ObsAddrs=[to_bytes(str(nobody))])))
        await read_message(stream)  # its SYNC, unless it gives this try up before
        await stream.receive_some(1)  # it has one such stream at a time, so it ends this one first

    async with behind_a_relay(is_reached=False, answer=answer):
        with trio.fail_after(UNTIL_S):
            await tried_again.wait()
        assert [one.type for one in tries[:2]] == [CONNECT, CONNECT]
        assert all(one.ObsAddrs for one in tries[:2]), "each try must name its addresses, which may have changed"
