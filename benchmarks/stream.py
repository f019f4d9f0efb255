"""Claim "stream": one encrypted and multiplexed libp2p stream is at least 0.45 times as fast as a bare TCP connection.

Bar: ratio_to_raw, at least 0.45: bytes a second of one stream between two processes on loopback, over TLS and yamux,
divided by those of a plain trio TCP connection between the same two processes. Both write 256 KiB at a time and read at
most as much. The sender's clock runs from its first write to the receiver's message that everything has arrived. Noise,
which the host supports for peers that do not speak TLS, is measured beside it. CPU seconds are those of one process in
that time, user and system.

Invariants:

- The kinds take turns, so that other load on the machine affects all of them.
- A ratio is taken within a repetition, and the bar is on their median.
- Each repetition is a pair of processes of its own: in one pair the same program can stay a third slower than in the
  next.
- The first transfer of each kind is not counted, so that windows have opened.
- The payload is larger than a core's cache, as weights are.
- Each end keeps to a core of its own, as on two machines. Two ends on one core would pass bytes in its cache, and a
  bare copy would be three times as fast.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

import psutil
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
from swarm.libp2p.security import NOISE, TLS
from swarm.transport.interface import Stream

RATIO_AT_LEAST = 0.45
REPS = 7
TRANSFERS = 2
"""Transfers of each kind by one pair of processes; the first opens the windows and is not counted."""
MIB = 1024 * 1024
SIZE_MIB = 256
PIECE_BYTES = 256 * 1024
"""Bytes of a write, and of a read at most, as the node's own framing reads."""
SOURCE_PIECES = 256
"""Different pieces sent in turn: 64 MiB, twice what the last level caches of large servers hold for a core."""

RAW = "raw"
KINDS = {RAW: "trio TCP", TLS: "TLS, yamux", NOISE: "noise, yamux"}
BULK = "/bench/bulk/1"
LOOPBACK = "127.0.0.1"
DONE = b"!"

SHARED = 0.3
"""Cores used by other processes above which a warning is printed: two processes at full speed need two cores."""

TIMEOUT_S = 600.0
"""Timeout of an end that waits for the other one; a transfer takes seconds."""


class Pipe(Protocol):
    """The interface that a TCP connection and a stream of ours share."""

    async def send_all(self, data: bytes) -> None: ...

    async def receive_some(self, max_bytes: int) -> bytes: ...


@dataclass(frozen=True, kw_only=True)
class Copied:
    """One transfer. `others_cores` is how many cores other processes used meanwhile."""

    kind: str
    mib_per_s: float
    sender_cpu_s_per_gib: float
    receiver_cpu_s_per_gib: float
    others_cores: float


def benchmark() -> int:
    """Run everything, print the table and the verdict."""
    parser = arguments(__doc__ or "", reps=REPS)
    parser.add_argument("--mib", type=int, default=SIZE_MIB, help=f"size of each transfer (default {SIZE_MIB})")
    parser.add_argument("--end", choices=("sender", "receiver"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.end is not None:
        keep_to_a_core(first=options.end == "receiver")
        trio.run(receiver if options.end == "receiver" else sender, options.mib * MIB)
        return 0
    return report(list(copies(options.reps, options.mib)))


def copies(reps: int, size_mib: int) -> Iterator[Copied]:
    """Yield the measurements of each repetition."""
    for repetition in range(1, reps + 1):
        for copied in repeat(size_mib):
            say(f"{repetition}: {KINDS[copied.kind]:12} {copied.mib_per_s:6.0f} MiB/s")
            yield copied


def repeat(size_mib: int) -> Iterator[Copied]:
    """Start both ends, introduce them, and yield their measurements once warm."""
    options = ["--mib", str(size_mib)]
    with (
        started_end(__file__, "receiver", options) as receiving,
        started_end(__file__, "sender", options) as sending,
    ):
        introduce(sending, receiving)
        for transfer in range(TRANSFERS):
            for kind in KINDS:
                sent, received = heard(sending), heard(receiving)
                gib, cpu_s = size_mib / 1024, sent["cpu_s"] + received["cpu_s"]
                if transfer:
                    yield Copied(
                        kind=kind,
                        mib_per_s=size_mib / sent["seconds"],
                        sender_cpu_s_per_gib=sent["cpu_s"] / gib,
                        receiver_cpu_s_per_gib=received["cpu_s"] / gib,
                        others_cores=max(0.0, sent["everybody_s"] - cpu_s) / sent["seconds"],
                    )


def report(copied: Sequence[Copied]) -> int:
    """Print the table and the verdict."""
    runs = {kind: [one for one in copied if one.kind == kind] for kind in KINDS}
    ratios = {
        kind: [one.mib_per_s / raw.mib_per_s for one, raw in zip(runs[kind], runs[RAW], strict=True)] for kind in KINDS
    }
    header = ["one stream", "MiB/s", "ratio to raw", "sender, CPU s/GiB", "receiver, CPU s/GiB"]
    say("\n" + table(header, [row(kind, runs[kind], ratios[kind]) for kind in KINDS]))
    others = median([one.others_cores for one in copied]) or 0.0
    if others > SHARED:
        say(f"\nOther processes used {others:.1f} of {os.cpu_count()} cores meanwhile: the figures are not reliable.")
    bars = [Bar(name="ratio_to_raw", value=median(ratios[TLS]), at_least=RATIO_AT_LEAST)]
    return conclude("stream", bars, figures(runs, ratios) | {"others_cores": others})


def row(kind: str, runs: Sequence[Copied], ratios: Sequence[float]) -> list[str]:
    """Return a line of the table: medians, and the range of the ratio."""
    return [
        KINDS[kind],
        number(median([one.mib_per_s for one in runs]), 0),
        f"{number(median(ratios))} ({min(ratios):.2f} to {max(ratios):.2f})",
        number(median([one.sender_cpu_s_per_gib for one in runs])),
        number(median([one.receiver_cpu_s_per_gib for one in runs])),
    ]


def figures(runs: Mapping[str, Sequence[Copied]], ratios: Mapping[str, Sequence[float]]) -> dict[str, float | None]:
    """Return medians for the JSON line."""
    found: dict[str, float | None] = {}
    for kind, name in ((RAW, "raw"), (TLS, "tls"), (NOISE, "noise")):
        found[f"{name}_mib_s"] = median([one.mib_per_s for one in runs[kind]])
        found[f"{name}_ratio"] = median(ratios[kind])
        found[f"{name}_cpu_s_per_gib"] = median(
            [one.sender_cpu_s_per_gib + one.receiver_cpu_s_per_gib for one in runs[kind]]
        )
    return found


# The two ends. Each prints one line of JSON per transfer.


async def receiver(size: int) -> None:
    """Print the listening addresses, receive every transfer, and print its cost."""
    with trio.fail_after(TIMEOUT_S):
        async with AsyncExitStack() as stack:
            (listener,) = await trio.open_tcp_listeners(0, host=LOOPBACK)
            streams, arrived = trio.open_memory_channel[Stream](len(KINDS))
            addresses = {RAW: listener.socket.getsockname()[1]}
            for kind in (TLS, NOISE):
                addresses[kind] = await stack.enter_async_context(listening(kind, streams))
            say(json.dumps(addresses))
            pipes: dict[str, Pipe] = {RAW: await stack.enter_async_context(await listener.accept())}
            for kind in (TLS, NOISE):
                pipes[kind] = await arrived.receive()
            for _ in range(TRANSFERS):
                for kind in KINDS:
                    before = cpu_s()
                    await take(pipes[kind], size)
                    say(json.dumps({"cpu_s": cpu_s() - before}))


async def sender(size: int) -> None:
    """Read the receiver's addresses, connect once for each kind, send, and print the time taken."""
    addresses = json.loads(sys.stdin.readline())
    with trio.fail_after(TIMEOUT_S):
        async with AsyncExitStack() as stack:
            connection = await trio.open_tcp_stream(LOOPBACK, addresses[RAW])
            pipes: dict[str, Pipe] = {RAW: await stack.enter_async_context(connection)}
            for kind in (TLS, NOISE):
                pipes[kind] = await stack.enter_async_context(connected(kind, addresses[kind]))
            source = [os.urandom(PIECE_BYTES) for _ in range(SOURCE_PIECES)]
            for _ in range(TRANSFERS):
                for kind in KINDS:
                    before, everybody, began = cpu_s(), everybody_s(), time.perf_counter()
                    await give(pipes[kind], source, size)
                    cost = {"seconds": time.perf_counter() - began, "cpu_s": cpu_s() - before}
                    say(json.dumps(cost | {"everybody_s": everybody_s() - everybody}))


@asynccontextmanager
async def listening(kind: str, streams: trio.MemorySendChannel[Stream]) -> AsyncIterator[str]:
    """Yield the address of a host that speaks `kind`; it passes on the stream that is opened to it."""

    async def hand_on(stream: Stream) -> None:
        host.trust(stream.remote)
        await streams.send(stream)
        await trio.sleep_forever()

    async with open_libp2p(os.urandom(32), [f"/ip4/{LOOPBACK}/tcp/0"], security=[kind]) as host:
        host.handle(BULK, hand_on)
        yield host.addresses()[0]


@asynccontextmanager
async def connected(kind: str, address: str) -> AsyncIterator[Stream]:
    """Yield a stream to the receiver, which already has it open, so streams arrive in the order of the kinds."""
    async with open_libp2p(os.urandom(32), [], security=[kind]) as host:
        yield await host.open_stream(await host.dial([address]), BULK)


async def give(pipe: Pipe, source: Sequence[bytes], size: int) -> None:
    """Send `size` bytes and wait for the receiver's confirmation."""
    for at in range(size // PIECE_BYTES):
        await pipe.send_all(source[at % len(source)])
    if await pipe.receive_some(1) != DONE:
        raise BenchmarkError("the receiver closed the connection")


async def take(pipe: Pipe, size: int) -> None:
    """Receive `size` bytes and confirm them."""
    while size:
        data = await pipe.receive_some(PIECE_BYTES)
        if not data:
            raise BenchmarkError("the sender closed the connection")
        size -= len(data)
    await pipe.send_all(DONE)


def keep_to_a_core(*, first: bool) -> None:
    """Stay on the first or the last available core, where the system supports it."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[0] if first else cores[-1]})


def cpu_s() -> float:
    """Return the processor seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def everybody_s() -> float:
    """Return the processor time of all processes so far. Stolen time counts, since another guest used it."""
    times = psutil.cpu_times()
    return sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq", "steal"))


if __name__ == "__main__":
    main(benchmark)
