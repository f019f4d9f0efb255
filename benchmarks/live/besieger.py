"""Attack a learner as strangers do: `python -m benchmarks.live.besieger idle|greedy ADDRESS`.

    idle      300 connections of one address that say nothing, each opened again as soon as it is closed
    greedy    40 connections that shake hands, open 256 streams each, fill every window, and read nothing; each opened
              again, with another key, as soon as it is cut off

It ends with its standard input.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import trio

from node.runtime.shutdown import STOP_ON_EOF
from swarm.libp2p.identify import PING_PROTOCOL
from swarm.libp2p.multistream import encode_message
from swarm.libp2p.security import TLS, HandshakeFailed, Identity, secure_outbound, security_table
from swarm.libp2p.sockets.addresses import Address, parse_address
from swarm.libp2p.sockets.tcp import TcpConnection
from swarm.libp2p.yamux.connection import YAMUX_PROTOCOL
from swarm.libp2p.yamux.driving import ConnectionLost
from swarm.libp2p.yamux.frames import INITIAL_WINDOW, Flag, FrameType, encode_header

IDLE, GREEDY, STREAMS = 300, 40, 256
SOURCE = "127.0.0.66"
AGAIN_S = 0.01


async def connect(address: Address) -> trio.SocketStream:
    sock = trio.socket.socket()
    try:
        await sock.bind((SOURCE, 0))
        await sock.connect((address.host, address.port))
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(sock)


async def idle(address: Address) -> None:
    """Hold a connection and say nothing."""
    while True:
        with suppress(OSError, trio.BrokenResourceError):
            async with await connect(address) as stream:
                while await stream.receive_some():
                    pass  # a greeting, until the learner closes the connection
        await trio.sleep(AGAIN_S)


async def greedy(address: Address) -> None:
    """Fill every window, with as little memory of our own as possible."""
    header = encode_message("/multistream/1.0.0") + encode_message(PING_PROTOCOL)
    data = header + bytes(INITIAL_WINDOW - len(header))
    while True:
        with suppress(OSError, trio.BrokenResourceError, HandshakeFailed, ConnectionLost):
            async with await connect(address) as stream:
                raw = TcpConnection(stream, is_initiator=True)
                table = security_table(Identity.from_seed(os.urandom(32)), [TLS])
                assert address.peer is not None
                channel = await secure_outbound(raw, table, address.peer, YAMUX_PROTOCOL)
                for stream_id in range(1, 2 * STREAMS, 2):
                    await channel.send(encode_header(FrameType.DATA, Flag.SYN, stream_id, len(data)) + data)
                await trio.sleep_forever()
        await trio.sleep(AGAIN_S)


async def attack(kind: str, address: Address) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range({"idle": IDLE, "greedy": GREEDY}[kind]):
            nursery.start_soon({"idle": idle, "greedy": greedy}[kind], address)
        if STOP_ON_EOF in os.environ:
            await trio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(attack, sys.argv[1], parse_address(sys.argv[2]))
