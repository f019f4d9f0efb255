"""Punch with go-libp2p: kubo at one end of a cable, in a network of its own, and hosts of ours at the other.

    unshare --net python -m tests.support.partners.kubo_scene reached | reaches

`reached`: we reach kubo through a relay of ours, so it begins to punch. `reaches`: it reaches us, and we begin. Prints
one line of JSON with what came of it. All of it is in a network namespace that ends with the process, so its addresses
may be those of others.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from tempfile import TemporaryDirectory

import trio
from libp2p.relay.circuit_v2.pb.dcutr_pb2 import HolePunch

from benchmarks.network.node_kubo import MARK, arguments, identity
from protocol.core.ids import PeerId
from swarm.libp2p.host import Host
from swarm.libp2p.reachability.hole_punch import DCUTR
from swarm.libp2p.reachability.wire import framed, receive
from swarm.libp2p.sockets.addresses import from_socket
from tests.support.partners.circuits import (
    LOOK_AGAIN_S,
    UNTIL_S,
    circuit_from,
    introduction,
    ours,
    ping,
    places,
    through,
    until_reserved,
)

KUBO = "1.2.3.3"
KUBO_SEED = bytes([9]) * 32
RELAY, HOST = "1.2.3.1", "1.2.3.2"
OBSERVERS = [f"1.2.{number}.1" for number in range(10, 15)]
"""Addresses of observers: four must report where they see it, and these must differ."""

PREPARE = f"""
until ip link show inside >/dev/null 2>&1; do sleep 0.05; done
ip link set lo up && ip addr add {KUBO}/8 dev inside && ip link set inside up && exec "$0" "$@"
"""
"""Program that waits for its end of the cable, since only its starter knows its network."""


def lay_cable() -> None:
    """Give this network its addresses, and a cable whose other end is still free."""
    commands = ["link set lo up", "link add outside type veth peer name inside", "link set outside up"]
    commands += [f"addr add {address}/8 dev outside" for address in (RELAY, HOST, *OBSERVERS)]
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)


class Kubo:
    """The process, its name, and its output lines."""

    def __init__(self, process: trio.Process, peer: PeerId) -> None:
        self.peer = peer
        self._process = process
        self._unread = b""

    async def said(self) -> str:
        """Return its next message to us, without its log."""
        assert self._process.stderr is not None
        with trio.fail_after(UNTIL_S):
            while True:
                while b"\n" not in self._unread:
                    piece = await self._process.stderr.receive_some()
                    assert piece, "kubo ended"
                    self._unread += piece
                line, _, self._unread = self._unread.partition(b"\n")
                if line.startswith(MARK.encode()):
                    return line.decode().removeprefix(MARK)

    async def connect(self, address: str) -> None:
        assert self._process.stdin is not None
        await self._process.stdin.send_all(address.encode() + b"\n")
        await self.said()


@asynccontextmanager
async def kubo(relay: Host) -> AsyncIterator[Kubo]:
    """Run kubo at the cable's other end; it knows one relay."""
    who = identity(KUBO_SEED)
    listen = [f"/ip4/{KUBO}/tcp/4001"]
    with TemporaryDirectory(prefix="kubo-") as repository:
        program = arguments(repository, listen=listen, relays=relay.addresses(), who=who)
        process = await trio.lowlevel.open_process(
            ["unshare", "--net", "sh", "-c", PREPARE, sys.executable, *program],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdout=sys.stderr,
            cwd=repository,  # it leaves a log in the directory in which it is started
        )
        try:
            with trio.fail_after(UNTIL_S):
                while _network_of(process.pid) == _network_of(os.getpid()):
                    await trio.sleep(LOOK_AGAIN_S)
            subprocess.run(["ip", "link", "set", "inside", "netns", str(process.pid)], check=True)
            one = Kubo(process, PeerId(who["PeerID"]))
            await one.said()
            yield one
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()


def _network_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


async def met(host: Host, peer: PeerId) -> dict[str, object]:
    """Wait for a direct connection, use it, and return how it came about."""
    with trio.move_on_after(UNTIL_S):
        await host.unless_met(peer, trio.sleep_forever)
    connection = host.open_connection(peer)
    if connection is None:
        return {"way": None}
    await ping(host, connection)
    return {"way": connection.route.way.value, "at": connection.route.address}


async def reached(host: Host, relay: Host, go: Kubo) -> dict[str, object]:
    """We reach it, and it begins to punch."""
    await until_reserved(relay, go.peer)
    await host.reaching.circuits.connect(relay.peer_id, go.peer)
    return await met(host, go.peer)


async def reaches(host: Host, relay: Host, go: Kubo) -> dict[str, object]:
    """It reaches us, and we begin: our CONNECT, its CONNECT. Return its messages, byte for byte."""
    await go.connect(through(relay, host.peer_id))
    circuit = await circuit_from(host, go.peer)
    stream = await host.open_stream_on(
        circuit, DCUTR, framed(HolePunch(type=HolePunch.CONNECT, ObsAddrs=[b"\x04\x01\x02\x03\x02\x06\x0f\xa1"]))
    )
    told = await receive(stream, HolePunch)
    return {"type": int(told.type), "seen_at": places(told.ObsAddrs)}


async def main(act: str) -> None:
    lay_cable()
    async with AsyncExitStack() as stack:
        relay = await stack.enter_async_context(ours(1, listen=[f"/ip4/{RELAY}/tcp/0"]))
        # It would dial us without punching at the address that we announce.
        host = await stack.enter_async_context(
            ours(2, listen=[f"/ip4/{HOST}/tcp/0"], announce=["/ip4/127.0.0.1/tcp/1"])
        )
        observers = [
            await stack.enter_async_context(ours(number, listen=[f"/ip4/{address}/tcp/0"]))
            for number, address in enumerate(OBSERVERS, 20)
        ]
        host.reaching.meetings.puncher.seen_at = lambda: [
            from_socket(one.socket.getsockname()) for one in host.listeners
        ]
        relay.trust(host.peer_id)
        relay.trust(PeerId(identity(KUBO_SEED)["PeerID"]))
        await host.dial(relay.addresses())
        await host.reaching.circuits.reserve(relay.peer_id)
        go = await stack.enter_async_context(kubo(relay))
        for one in observers:
            await go.connect(one.addresses()[0])
        await punches(observers[0], go.peer)
        print(json.dumps(await {"reached": reached, "reaches": reaches}[act](host, relay, go)), flush=True)


async def punches(observer: Host, peer: PeerId) -> None:
    """Wait until it says that it speaks DCUtR, which it does once it knows its observed address."""
    connection = observer.open_connection(peer)
    assert connection is not None
    with trio.fail_after(UNTIL_S):
        while DCUTR not in (await introduction(observer, connection)).protocols:
            await trio.sleep(LOOK_AGAIN_S)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
