"""Run a node behind its router that another node connects to, or the relay that introduces two of them.

    conductor  <assignment>    one line of JSON: the identity of this attempt, and the peer to connect to
    program    READY           a node: it is at the relay and can be reached through it; the relay: it listens
    conductor  GO              to one of the two: connect to the other
    program    DONE            it has a connection, or has given up
    conductor  TELL            to both
    program    <report>        one line of JSON: the connection by which it reaches the other
    conductor  END             to all
    program    ENDED           the next assignment may come

Each assignment makes a new node, with another name and another port, so that nothing is left of the one before.
`python -m benchmarks.network.node_reach debug` logs the messages of the swarm's modules on standard error.

Invariants:

- A connection is reported only after a ping came back over it, and never one that a relay carries.
- The program ends with its standard input.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Sequence
from typing import cast

import msgspec
import trio

from protocol.core.ids import PeerId
from swarm.libp2p import open_libp2p
from swarm.libp2p.connection import Connection
from swarm.libp2p.host import Host
from swarm.libp2p.identify import PING_PROTOCOL
from swarm.transport.interface import DialFailed, TransportError

READY_S = 20.0
"""Timeout for a node to be at the relay, with a reservation, and to know its outside address."""

LOOK_AGAIN_S = 0.01
PING_S = 5.0
PING = bytes(range(32))


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """A program's identity for one attempt: `seed` is its key in hexadecimal. A relay has `trusted` and no `relay`."""

    seed: str
    listen: list[str]
    trusted: list[PeerId] = []
    relay: list[str] = []
    peer: PeerId = PeerId("")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an attempt.

    `direct` says whether the peer answered over a direct connection, `remote` is its address, and `dialled` says
    whether this end began it, from its listening port if `from_listening`. `seconds` are those from GO to the
    connection. `tries` is how often the end that was reached started a simultaneous dial, 0 for the other end.
    `verdict` is how the node assesses its own reachability, and `error` says why there is no connection.
    """

    direct: bool = False
    remote: str = ""
    dialled: bool = False
    from_listening: bool = False
    seconds: float = 0.0
    tries: int = 0
    verdict: str = ""
    error: str = ""


async def serve() -> None:
    """Run one node after another, until standard input ends."""
    while line := await _hear():
        task = msgspec.json.decode(line, type=Assignment)
        async with open_libp2p(bytes.fromhex(task.seed), task.listen) as transport:
            await _play(cast(Host, transport), task)
        _say("ENDED")


async def _play(host: Host, task: Assignment) -> None:
    """Perform one assignment, until END."""
    for peer in [*task.trusted, *([task.peer] if task.peer else [])]:
        host.trust(peer)
    error = await _be_at_relay(host, task) if task.relay else ""
    _say("READY")
    seconds = 0.0
    while (word := (await _hear()).strip()) in {"GO", "TELL"}:
        if word == "GO":
            began = time.monotonic()
            error = error or await _dial(host, task)
            seconds = time.monotonic() - began
            _say("DONE")
        else:
            _say(msgspec.json.encode(await _report(host, task.peer, seconds, error)).decode())


async def _report(host: Host, peer: PeerId, seconds: float, error: str) -> Report:
    punched = host.reaching.meetings.punched.get(peer)
    tries = 0 if punched is None else punched.tries
    report = Report(seconds=seconds, tries=tries, verdict=host.reached().kind.value)
    connection = host.open_connection(peer)
    why = "no connection" if connection is None else await _ping(host, connection)
    if connection is None or why:
        return msgspec.structs.replace(report, error=error or why)
    route = connection.route
    return msgspec.structs.replace(
        report,
        direct=route.relay is None,
        remote=route.address,
        dialled=route.dialled,
        from_listening=route.from_listening,
    )


async def _be_at_relay(host: Host, task: Assignment) -> str:
    """Connect to the relay, and wait until the node can be reached through it; return why that failed."""
    try:
        with trio.fail_after(READY_S):
            await host.dial(task.relay)
            while not (host.reaching.circuits.relays() and host.reaching.own_reach.observed.candidates()):
                await trio.sleep(LOOK_AGAIN_S)
    except DialFailed as error:
        return f"the relay was not reached: {error}"
    except trio.TooSlowError:
        relays, seen = host.reaching.circuits.relays(), host.reaching.own_reach.observed.candidates()
        return f"not ready within {READY_S:.0f} s: reserved with {len(relays)} relays, seen at {len(seen)} addresses"
    return ""


async def _dial(host: Host, task: Assignment) -> str:
    try:
        await host.dial([f"{relay}/p2p-circuit/p2p/{task.peer}" for relay in task.relay])
    except DialFailed as error:
        return str(error)
    return ""


async def _ping(host: Host, connection: Connection) -> str:
    """Ping the peer over this connection; return why it failed, or an empty text."""
    try:
        with trio.fail_after(PING_S):
            stream = await host.open_stream_on(connection, PING_PROTOCOL, PING)
            answer = b""
            while len(answer) < len(PING) and (more := await stream.receive_some(len(PING))):
                answer += more
            await stream.aclose()
    except (TransportError, trio.TooSlowError) as error:
        return f"the peer does not answer: {error or 'no answer in time'}"
    return "" if answer == PING else "the peer answered something else"


async def _hear() -> str:
    return await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)


def _say(text: str) -> None:
    print(text, flush=True)


def main(words: Sequence[str]) -> None:
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s.%(msecs)03d %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    if "debug" in words:
        logging.getLogger("swarm").setLevel(logging.DEBUG)
    trio.run(serve)


if __name__ == "__main__":
    main(sys.argv[1:])
