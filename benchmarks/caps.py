"""Claim "caps": a node keeps its bandwidth caps within 5 %, and is not slower without caps.

Bars:

- worst_deviation_pct, at most 5: the deviation from the cap of the bytes that the kernel counted on the sockets of the
  capped node in five seconds (TCP_INFO: acknowledged, or received and read). It is measured for each direction, rate
  (5, 20, 100, 400 Mbit/s) and number of connections (1, 4). All connections carry bulk as fast as they can, encrypted
  and multiplexed.
- uncapped_cpu_ratio, at most 1.05: processor time per byte of a node without caps, over that of a node whose caps are
  never reached but cost time.

In the table, `least share` is the share of the connection that got least, over an equal share. `ping` is the round trip
of 32 bytes at the same time, over one more connection of the same node: small messages do not wait for bulk.

Invariants:

- The two ends are processes of their own on loopback.
- The first second is not counted, so that windows have opened and the burst is spent.

Needs Linux, whose TCP_INFO this reads.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import socket
import struct
import sys
import termios
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio
from harness import (
    Bar,
    BenchmarkError,
    arguments,
    conclude,
    heard,
    introduce,
    main,
    median,
    number,
    say,
    started_end,
    table,
)

from swarm.libp2p import open_libp2p
from swarm.transport.interface import Stream, StreamBroken, Transport

DEVIATION_PCT_AT_MOST = 5.0
UNCAPPED_AT_MOST = 1.05
REPS = 1
RATES_MBIT = (5.0, 20.0, 100.0, 400.0)
NUM_CONNECTIONS = (1, 4)
UNREACHED_MBIT = 100_000.0
UNCAPPED_REPS = 5

WARM_UP_S = 1.0
MEASURE_S = 5.0
PING_PAUSE_S = 0.05
PIECE = os.urandom(256 * 1024)
UP, DOWN = "up", "down"
TAKE, GIVE, ECHO = "/bench/take/1", "/bench/give/1", "/bench/echo/1"
LOOPBACK = "/ip4/127.0.0.1/tcp/0"

ESTABLISHED = 1
BYTES_ACKED = 120
"""Offset of tcpi_bytes_acked in `struct tcp_info` of linux/tcp.h, followed by tcpi_bytes_received; both are u64."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One measurement. `mbit` None: no cap."""

    way: str
    mbit: float | None
    connections: int

    def argv(self) -> list[str]:
        cap = [] if self.mbit is None else ["--mbit", str(self.mbit)]
        return ["--way", self.way, "--connections", str(self.connections), *cap]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Bytes a second in total, the smallest connection's share over an equal one, pings, and processor time."""

    case: Case
    bytes_per_s: float
    least_share: float
    ping_ms: float
    ping_max_ms: float
    cores: float

    @property
    def deviation_pct(self) -> float:
        assert self.case.mbit is not None
        return 100 * (8 * self.bytes_per_s / (self.case.mbit * 1e6) - 1)


def benchmark() -> int:
    """Run everything, print the table and the verdict."""
    parser = arguments(__doc__ or "", reps=REPS)
    for name, kind in (("end", str), ("way", str), ("mbit", float), ("connections", int)):
        parser.add_argument(f"--{name}", type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.end is not None:
        case = Case(way=options.way, mbit=options.mbit, connections=options.connections)
        trio.run(capped_end if options.end == "capped" else free_end, case)
        return 0
    if not sys.platform.startswith("linux"):
        raise BenchmarkError("bytes sent over a socket are read from Linux's TCP_INFO; run this on Linux.")
    cases = [
        Case(way=way, mbit=mbit, connections=n) for way in (UP, DOWN) for mbit in RATES_MBIT for n in NUM_CONNECTIONS
    ]
    capped = [measure(case) for _ in range(options.reps) for case in cases]
    say(
        "\n"
        + table(
            ["way", "cap, Mbit/s", "connections", "measured", "off by", "least share", "ping", "cores"],
            [row(one) for one in capped],
        )
    )
    ratios = [uncapped_ratio() for _ in range(UNCAPPED_REPS)]
    found = f"{number(median(ratios))} ({min(ratios):.2f} to {max(ratios):.2f})"
    say(f"\nProcessor time per byte without caps, against caps never reached: {found}")
    bars = [
        Bar(
            name="worst_deviation_pct",
            value=max(abs(one.deviation_pct) for one in capped),
            at_most=DEVIATION_PCT_AT_MOST,
        ),
        Bar(name="uncapped_cpu_ratio", value=median(ratios), at_most=UNCAPPED_AT_MOST),
    ]
    figures = {
        f"{one.case.way}_{one.case.mbit:.0f}_{one.case.connections}_mbit": 8 * one.bytes_per_s / 1e6 for one in capped
    }
    return conclude("caps", bars, figures | {"slowest_ping_ms": max(one.ping_max_ms for one in capped)})


def row(one: Measured) -> list[str]:
    """Return a line of the table."""
    return [
        one.case.way,
        f"{one.case.mbit:.0f}",
        str(one.case.connections),
        f"{8 * one.bytes_per_s / 1e6:.2f}",
        f"{one.deviation_pct:+.2f} %",
        f"{one.least_share:.2f}",
        f"{one.ping_ms:.1f}, at most {one.ping_max_ms:.0f} ms",
        f"{one.cores:.2f}",
    ]


def uncapped_ratio() -> float:
    """Return processor time per byte without a cap, over that with a cap that is never reached."""
    plain, paced = (measure(Case(way=UP, mbit=mbit, connections=1)) for mbit in (None, UNREACHED_MBIT))
    return (plain.cores / plain.bytes_per_s) / (paced.cores / paced.bytes_per_s)


def measure(case: Case) -> Measured:
    """Start both ends, and return the measurement of the capped one."""
    with started_end(__file__, "free", case.argv()) as free, started_end(__file__, "capped", case.argv()) as capped:
        introduce(capped, free)
        found = heard(capped)
    moved, pings = found["moved"], found["pings_ms"]
    measured = Measured(
        case=case,
        bytes_per_s=sum(moved) / found["seconds"],
        least_share=sorted(moved)[-case.connections] * case.connections / sum(moved),
        ping_ms=median(pings) or 0.0,
        ping_max_ms=max(pings),
        cores=found["cpu_s"] / found["seconds"],
    )
    say(f"{case}: {8 * measured.bytes_per_s / 1e6:.2f} Mbit/s")
    return measured


# The two ends.


async def free_end(case: Case) -> None:
    """Run one host for each connection and one for pings; they take, give or echo as requested."""
    async with AsyncExitStack() as stack:
        hosts = [await stack.enter_async_context(free_host()) for _ in range(case.connections + 1)]
        say(json.dumps([host.addresses()[0] for host in hosts]))
        await trio.sleep_forever()


@asynccontextmanager
async def free_host() -> AsyncIterator[Transport]:
    async with open_libp2p(os.urandom(32), [LOOPBACK]) as host:
        for protocol, serve in ((TAKE, take), (GIVE, give), (ECHO, echo)):
            host.handle(protocol, partial(_as_member, host, serve))
        yield host


async def _as_member(host: Transport, serve: Callable[[Stream], Awaitable[None]], stream: Stream) -> None:
    """Serve a peer with the budgets of a member, since a stranger's bulk is slowed down."""
    host.trust(stream.remote)
    await serve(stream)


async def capped_end(case: Case) -> None:
    """Run one host with the cap: bulk over every connection but the last, which carries pings."""
    *addresses, of_pings = json.loads(sys.stdin.readline())
    cap = None if case.mbit is None else case.mbit * 1e6
    up, down = (cap if case.way == way or case.mbit == UNREACHED_MBIT else None for way in (UP, DOWN))
    async with (
        open_libp2p(os.urandom(32), [], upload_bits_per_s=up, download_bits_per_s=down) as host,
        trio.open_nursery() as nursery,
    ):
        for address in addresses:
            stream = await host.open_stream(await host.dial([address]), TAKE if case.way == UP else GIVE)
            nursery.start_soon(give if case.way == UP else take, stream)
        pings = await host.open_stream(await host.dial([of_pings]), ECHO)
        await trio.sleep(WARM_UP_S)
        before, began, cpu_s = wire_bytes(case.way), time.perf_counter(), time.process_time()
        pings_ms = await ping(pings, MEASURE_S)
        after, seconds, cpu_s = wire_bytes(case.way), time.perf_counter() - began, time.process_time() - cpu_s
        moved = [after[name] - before[name] for name in before]
        say(json.dumps({"moved": moved, "seconds": seconds, "cpu_s": cpu_s, "pings_ms": pings_ms}))
        nursery.cancel_scope.cancel()


async def ping(stream: Stream, seconds: float) -> list[float]:
    """Send 32 bytes repeatedly for this many seconds; return the round trip times in milliseconds."""
    taken_ms: list[float] = []
    until = trio.current_time() + seconds
    while trio.current_time() < until:
        began = time.perf_counter()
        await stream.send_all(bytes(32))
        stream.expect(32)
        await stream.receive_some(32)
        taken_ms.append((time.perf_counter() - began) * 1000)
        await trio.sleep(PING_PAUSE_S)
    return taken_ms


async def give(stream: Stream) -> None:
    """Send until the other side leaves."""
    try:
        while True:
            await stream.send_all(PIECE)
    except StreamBroken:
        return


async def take(stream: Stream) -> None:
    """Read until the other side ends."""
    try:
        while await stream.receive_some(len(PIECE)):
            pass
    except StreamBroken:
        return


async def echo(stream: Stream) -> None:
    """Send received data back."""
    while data := await stream.receive_some(1024):
        await stream.send_all(data)


def wire_bytes(way: str) -> dict[str, int]:
    """Return by socket the bytes that each connection of this process has sent (up) or read (down), by the kernel."""
    found: dict[str, int] = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                info = one.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
                unread = int.from_bytes(fcntl.ioctl(one, termios.FIONREAD, bytes(4)), sys.byteorder)
        except OSError:  # not TCP, or closed meanwhile
            continue
        if info[0] == ESTABLISHED and one.family != socket.AF_UNIX:
            acked, received = struct.unpack_from("=QQ", info, BYTES_ACKED)
            found[name] = acked if way == UP else received - unread
    return found


if __name__ == "__main__":
    main(benchmark)
