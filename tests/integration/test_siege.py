"""Strangers try to keep others out, or to fill our memory, over real sockets."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
import trio

from protocol.core.ids import PeerId
from swarm.libp2p import open_libp2p
from swarm.libp2p.connection_gate import BYTES, HANDSHAKE_RATE, HANDSHAKES, ORIGIN_HANDSHAKES, STRANGERS, STREAM_RATE
from swarm.libp2p.host import Host
from swarm.libp2p.identify import IDENTIFY_PROTOCOL, PING_PROTOCOL
from swarm.libp2p.memory_budget import MAX_STRANGERS, STRANGER_STREAMS, STRANGERS_BYTES, Over
from swarm.libp2p.multistream import encode_message
from swarm.libp2p.security import TLS, Identity, SecureChannel, secure_outbound, security_table
from swarm.libp2p.sockets.addresses import parse_address
from swarm.libp2p.sockets.tcp import TcpConnection
from swarm.libp2p.yamux.connection import STRANGER_CONTROL_FRAMES
from swarm.libp2p.yamux.driving import ConnectionLost
from swarm.libp2p.yamux.frames import INITIAL_WINDOW, Flag, FrameParser, FrameType, encode_header
from swarm.testing.transport_conformance import ECHO, HOLD, echo, hold, read_exactly
from swarm.transport.interface import DialFailed, PeerConnected, Stream
from tests.support.memory_budgets import held_by_all

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
SEED_A, SEED_B = b"a" * 32, b"b" * 32
IDLE = 300
GREEDY, GREEDY_STREAMS = 40, 256

pytestmark = pytest.mark.trio


@asynccontextmanager
async def host() -> AsyncIterator[Host]:
    async with open_libp2p(SEED_A, [LOOPBACK]) as learner:
        assert isinstance(learner, Host)
        learner.handle(ECHO, echo)
        learner.handle(HOLD, hold)
        yield learner


async def idle(learner: Host, source: str, connected: Callable[[], None]) -> None:
    """Hold a connection without a word; when it is closed, make another."""
    while True:
        with suppress(OSError), trio.socket.socket() as one:
            await one.bind((source, 0))
            await one.connect(("127.0.0.1", parse_address(learner.addresses()[0]).port))
            connected()
            while await one.recv(1024):
                pass  # discard a greeting, until the connection is closed


def sources_of_strangers(kind: str) -> list[str]:
    if kind == "one address":
        return ["127.0.0.66"] * IDLE
    return [f"127.7.{number // 250}.{number % 250 + 1}" for number in range(IDLE)]


@pytest.mark.parametrize("kind", ["one address", "many addresses"])
async def test_a_member_comes_back_beside_three_hundred_idle_connections(kind: str) -> None:
    """It comes back within every dialler's timeout. Each idle connection is made again as soon as it is closed."""
    async with host() as learner, open_libp2p(SEED_B, []) as member, trio.open_nursery() as nursery:
        num_connected = 0
        all_there = trio.Event()

        def connected() -> None:
            nonlocal num_connected
            num_connected += 1
            if num_connected >= IDLE:
                all_there.set()

        for source in sources_of_strangers(kind):
            nursery.start_soon(idle, learner, source, connected)
        await all_there.wait()
        for _ in range(3):
            await member.dial(learner.addresses())
            stream = await member.open_stream(learner.peer_id, ECHO)
            await stream.send_all(b"back")
            assert await read_exactly(stream, 4) == b"back"
            await member.disconnect(learner.peer_id)
        assert HANDSHAKES in {refusal.budget for refusal in learner.refusals()}
        nursery.cancel_scope.cancel()


async def test_a_laboratory_behind_one_address_gets_in_as_a_whole() -> None:
    async with host() as learner, trio.open_nursery() as nursery:
        done = list[PeerId]()

        async def join(number: int) -> None:
            async with open_libp2p(bytes([number]) * 32, []) as node:
                await node.dial(learner.addresses())
                learner.trust(node.peer_id)
                done.append(node.peer_id)
                await trio.sleep_forever()

        for number in range(60):
            nursery.start_soon(join, number)
        while len(done) < 60:
            await trio.sleep(0.05)
        assert learner.connected_peers() == frozenset(done)
        assert learner.refusals() == []
        nursery.cancel_scope.cancel()


async def test_more_than_there_are_places_for_all_get_in_and_nobody_is_sent_away() -> None:
    """Known and unknown peers at once, more than MAX_STRANGERS, each from an address of its own."""
    many, welcomed = MAX_STRANGERS + 72, list[PeerId]()
    async with host() as learner, trio.open_nursery() as nursery:
        keys = [bytes([1, number]) * 16 for number in range(many)]
        names = [Identity.from_seed(key).peer_id for key in keys]
        learner.expect({name: f"127.8.0.{number + 1}" for number, name in enumerate(names[: many // 2])})

        async def greet(stream: Stream) -> None:
            await trio.sleep(0.02)  # as long as a row of the ledger takes
            learner.trust(stream.remote)
            welcomed.append(stream.remote)
            await stream.send_all(b"welcome")

        async def join(key: bytes, number: int) -> None:
            async with open_libp2p(key, [f"/ip4/127.8.0.{number + 1}/tcp/0"]) as node:
                await node.dial(learner.addresses())
                stream = await node.open_stream(learner.peer_id, "/greeting")
                assert await stream.receive_some(7) == b"welcome"
                await trio.sleep_forever()

        learner.handle("/greeting", greet)
        for number, key in enumerate(keys):
            nursery.start_soon(join, key, number)
        while len(welcomed) < many:
            await trio.sleep(0.05)
        assert learner.connected_peers() == frozenset(names)
        assert STRANGERS not in {refusal.budget for refusal in learner.refusals()}
        nursery.cancel_scope.cancel()


async def test_a_member_that_comes_and_goes_as_fast_as_it_can_shakes_hands_no_more_often_than_its_origin_may() -> None:
    """A member that stays is answered all the while. Refusals are not held against the restless member."""
    tries = round(ORIGIN_HANDSHAKES.burst) + 150
    async with (
        host() as learner,
        open_libp2p(SEED_B, ["/ip4/127.9.0.1/tcp/0"]) as restless,
        open_libp2p(bytes([3]) * 32, []) as steady,
        trio.open_nursery() as nursery,
    ):
        learner.trust(restless.peer_id)
        came = 0

        async def listen() -> None:
            nonlocal came
            async for event in learner.events():
                came += isinstance(event, PeerConnected) and event.peer == restless.peer_id

        nursery.start_soon(listen)
        await steady.dial(learner.addresses())
        stream = await steady.open_stream(learner.peer_id, ECHO)
        began = trio.current_time()
        for number in range(tries):
            with suppress(DialFailed):
                await restless.dial(learner.addresses())
            await restless.disconnect(learner.peer_id)
            if not number % 10:
                await stream.send_all(b"still here")
                assert await read_exactly(stream, 10) == b"still here"
        took_s = trio.current_time() - began
        refused = {refusal.budget: refusal.times for refusal in learner.refusals()}
        assert came <= ORIGIN_HANDSHAKES.burst + ORIGIN_HANDSHAKES.per_s * took_s + 1
        assert came + refused[HANDSHAKE_RATE] >= tries - 1
        assert learner.is_trusted(restless.peer_id)
        nursery.cancel_scope.cancel()


async def test_a_restart_finds_who_was_a_member_before() -> None:
    """Strangers' connections fill the strangers' places; a former member is not the one that must go."""
    async with host() as learner, open_libp2p(SEED_B, []) as member, trio.open_nursery() as nursery:
        learner.expect({member.peer_id: "127.0.0.1"})
        await member.dial(learner.addresses())
        for number in range(MAX_STRANGERS + 8):
            await nursery.start(connect, learner, bytes([0, number]) * 16, f"127.9.0.{number + 1}")
        assert member.peer_id in learner.connected_peers()
        assert learner.door.num_strangers == MAX_STRANGERS
        assert STRANGERS in {refusal.budget for refusal in learner.refusals()}
        nursery.cancel_scope.cancel()


async def connect(
    learner: Host,
    seed: bytes,
    source: str,
    *,
    task_status: trio.TaskStatus[SecureChannel],
) -> None:
    """Be a stranger that shakes hands and stays; the caller decides what it does then."""
    raw_socket = socket.socket()
    raw_socket.bind((source, 0))
    raw_socket.setblocking(False)
    sock = trio.socket.from_stdlib_socket(raw_socket)
    await sock.connect(("127.0.0.1", parse_address(learner.addresses()[0]).port))
    raw = TcpConnection(trio.SocketStream(sock), is_initiator=True)
    try:
        table = security_table(Identity.from_seed(seed), [TLS])
        channel = await secure_outbound(raw, table, learner.peer_id, "/yamux/1.0.0")
        while learner._shaking:  # in TLS a listener is done half a round trip after the dialler
            await trio.sleep(0.01)
        task_status.started(channel)
        await trio.sleep_forever()
    finally:
        sock.close()


def opened(stream_id: int, protocol: str, payload: bytes) -> bytes:
    """Return the frames of a stream that is opened, negotiated without waiting, and filled."""
    data = encode_message("/multistream/1.0.0") + encode_message(protocol) + payload
    return encode_header(FrameType.DATA, Flag.SYN, stream_id, len(data)) + data


async def send(channel: SecureChannel, data: bytes) -> None:
    """Send without ever reading; ignore that we are cut off."""
    with suppress(ConnectionLost):
        await channel.send(data)


async def until_cut_off(channel: SecureChannel) -> list[int]:
    """Read to the end; return the types of the frames that came."""
    parser, types = FrameParser(), list[int]()
    with suppress(ConnectionLost):
        while True:
            types += [frame.type for frame in parser.feed(await channel.receive(1))]
    return types


async def test_greedy_strangers_never_hold_more_than_their_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty strangers fill 256 streams each, which the host does not read, and read nothing themselves."""
    async with host() as learner, open_libp2p(SEED_B, []) as member, trio.open_nursery() as nursery:
        held, end_over = list[int](), learner.end_over

        def ended(over: list[Over]) -> None:
            end_over(over)
            held.append(held_by_all(learner.budget, members=False))

        monkeypatch.setattr(learner, "end_over", ended)
        await member.dial(learner.addresses())
        learner.trust(member.peer_id)
        stream = await member.open_stream(learner.peer_id, ECHO)
        for number in range(GREEDY):
            channel = await nursery.start(connect, learner, bytes([1, number]) * 16, "127.0.0.66")
            nursery.start_soon(fill_streams, channel)
        refused = set[str]()
        while BYTES not in refused:
            await stream.send_all(bytes(1000))
            assert len(await read_exactly(stream, 1000)) == 1000
            refused |= {refusal.budget for refusal in learner.refusals()}
        assert STRANGERS_BYTES / 2 < max(held) <= STRANGERS_BYTES
        nursery.cancel_scope.cancel()


async def fill_streams(channel: SecureChannel) -> None:
    payload = bytes(INITIAL_WINDOW - 64)
    for stream_id in range(1, 2 * GREEDY_STREAMS, 2):
        await send(channel, opened(stream_id, HOLD, payload))


async def test_a_stranger_has_few_streams_and_a_member_many() -> None:
    async with host() as learner, open_libp2p(SEED_B, []) as other:
        await other.dial(learner.addresses())
        held = [await other.open_stream(learner.peer_id, HOLD) for _ in range(STRANGER_STREAMS)]
        with pytest.raises(Exception, match="aborted"):
            await other.open_stream(learner.peer_id, HOLD)
        learner.trust(other.peer_id)
        held += [await other.open_stream(learner.peer_id, HOLD) for _ in range(STRANGER_STREAMS)]
        for stream in held:
            assert await read_exactly(stream, 1) == b"!"


async def test_who_leaves_too_much_unread_is_cut_off_and_told_of() -> None:
    async with host() as learner, trio.open_nursery() as nursery:
        learner.budget.stranger_bytes = INITIAL_WINDOW
        channel = await nursery.start(connect, learner, SEED_B, "127.0.0.1")
        nursery.start_soon(until_cut_off, channel)
        for stream_id in (1, 3):
            await send(channel, opened(stream_id, HOLD, bytes(INITIAL_WINDOW - 64)))
        while learner.connected_peers():
            await trio.sleep(0.01)
        assert held_by_all(learner.budget, members=False) == 0
        assert BYTES in {refusal.budget for refusal in learner.refusals()}
        nursery.cancel_scope.cancel()


FLOODS = {
    "pings": lambda number: encode_header(FrameType.PING, Flag.SYN, 0, number),
    "window updates": lambda number: encode_header(FrameType.WINDOW_UPDATE, Flag.NONE, 1, 1),
    "unknown protocols": lambda number: opened(2 * number + 1, "/nobody/speaks/1", b""),
    "opened and reset": lambda number: (
        encode_header(FrameType.WINDOW_UPDATE, Flag.SYN, 2 * number + 1, 0)
        + encode_header(FrameType.WINDOW_UPDATE, Flag.RST, 2 * number + 1, 0)
    ),
    "identify": lambda number: opened(2 * number + 1, IDENTIFY_PROTOCOL, b""),
    "ping streams": lambda number: opened(2 * number + 1, PING_PROTOCOL, bytes(32)),
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_of_small_things_is_read_slowly_or_ends(kind: str) -> None:
    """Ten thousand of them do not delay a member, and are reported."""
    async with host() as learner, open_libp2p(SEED_B, []) as member, trio.open_nursery() as nursery:
        await member.dial(learner.addresses())
        learner.trust(member.peer_id)
        stream = await member.open_stream(learner.peer_id, ECHO)
        channel = await nursery.start(connect, learner, b"x" * 32, "127.0.0.66")
        nursery.start_soon(until_cut_off, channel)
        nursery.start_soon(send, channel, b"".join(map(FLOODS[kind], range(10_000))))
        refused = set[str]()
        while len(learner.connected_peers()) > 1 and STREAM_RATE not in refused:
            await stream.send_all(b"here")
            assert await read_exactly(stream, 4) == b"here"
            refused |= {refusal.budget for refusal in learner.refusals()}
        nursery.cancel_scope.cancel()


async def test_a_stranger_that_lets_answers_pile_up_is_cut_off() -> None:
    """It asks (PING) faster than it reads."""
    async with host() as learner, trio.open_nursery() as nursery:
        channel = await nursery.start(connect, learner, b"x" * 32, "127.0.0.66")
        connection = next(iter(learner._by_number.values()))
        connection.muxer._control.extend([b"frame"] * (STRANGER_CONTROL_FRAMES + 1))
        await send(channel, encode_header(FrameType.PING, Flag.SYN, 0, 1))
        while learner.connected_peers():
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()


async def test_connections_that_come_and_go_leave_nothing() -> None:
    """From many keys, one after another."""
    async with host() as learner:
        for number in range(40):
            async with trio.open_nursery() as nursery:
                await nursery.start(connect, learner, bytes([2, number]) * 16, f"127.8.0.{number + 1}")
                nursery.cancel_scope.cancel()
        while learner.connected_peers() or learner._shaking:
            await trio.sleep(0.01)
        assert not learner.traffic()
        assert not learner.door._names
        assert held_by_all(learner.budget, members=False) == learner.door.num_strangers == 0
