"""Let thousands of hosts join over real connections: each has its own key, asks a question and leaves.

Usage is not measured in the first WARM_UP joins: a host remembers that many peers, and then forgets the oldest.

Invariants:

- Each host shakes hands as nodes do (TLS, yamux, identify) and gets an answer.
- None of them is left when usage is measured.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from benchmarks.soaks.usage import Usage, usage
from protocol.core.identity import Keypair
from swarm.libp2p import open_libp2p
from swarm.libp2p.connection_gate import MAX_EXPECTED
from swarm.transport.interface import Stream, Transport

WARM_UP = MAX_EXPECTED + 500
EACH = 250
"""Joins between two measurements."""

AT_ONCE = 4
QUESTION = "/soak/question/1"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"


async def _answer(stream: Stream) -> None:
    await stream.send_all(await stream.receive_some(64))


async def _join(host: Transport, number: int) -> None:
    """Join, be trusted, ask, and leave.

    Each host counts as one that was here before, at its own address: strangers come no faster than UNKNOWN_HANDSHAKES,
    and one origin no faster than ORIGIN_HANDSHAKES.
    """
    keypair, address = Keypair(os.urandom(32)), f"127.88.{number // 250 % 250}.{1 + number % 250}"
    host.expect({keypair.peer_id: address})
    async with open_libp2p(keypair.seed, [f"/ip4/{address}/tcp/0"]) as guest:
        peer = await guest.dial(host.addresses())
        host.trust(keypair.peer_id)
        stream = await guest.open_stream(peer, QUESTION)
        await stream.send_all(b"hello")
        if await stream.receive_some(64) != b"hello":
            raise AssertionError("the host did not answer")
        await stream.aclose()
    host.distrust(keypair.peer_id)


async def join(times: int, directory: Path, tell: Callable[[Usage], None]) -> Sequence[Usage]:
    """Let `times` hosts join after the warm-up; return the usage at every EACH joins, counted in thousands."""
    looks: list[Usage] = []
    async with open_libp2p(os.urandom(32), [LOOPBACK]) as host:
        host.handle(QUESTION, _answer)
        for done in range(0, WARM_UP + times, EACH):
            if done >= WARM_UP:
                looks.append(usage(done / 1000, directory))
                tell(looks[-1])
            limit = trio.CapacityLimiter(AT_ONCE)

            async def one(number: int, limit: trio.CapacityLimiter = limit) -> None:
                async with limit:
                    await _join(host, number)

            async with trio.open_nursery() as nursery:
                for number in range(done, done + EACH):
                    nursery.start_soon(one, number)
            while host.connected_peers():
                await trio.sleep(0.05)
    return looks
