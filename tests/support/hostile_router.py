"""Run a router that answers everything as badly as it can: `python hostile_router.py ADDRESS`, in its namespace.

PCP and NAT-PMP are answered with floods of broken, foreign and fleeting grants; the link hears announcements without
pause; UPnP is announced, and described without end. It writes a line of JSON with what it did, again and again.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import sys
from collections import Counter

import trio

ANSWERS = 100
"""Answers to each datagram."""

PAUSE_S = 0.001
"""Seconds between announcements."""

done: Counter[str] = Counter()
rng = random.Random(77)


def broken_answers(request: bytes) -> list[bytes]:
    """Return answers that are nearly right, and one that grants any port for a second."""
    outside = socket.inet_aton(f"30.77.0.{rng.randrange(1, 255)}")
    port, epoch = rng.randrange(65536), rng.randrange(1 << 32)
    if request[:1] == b"\2":
        right = struct.pack("!BBxBLL12x", 2, 0x80 | request[1], 0, 1, epoch)
        right += request[24:42] + struct.pack("!H", port) + b"\0" * 10 + b"\xff\xff" + outside
    elif len(request) == 2:
        right = struct.pack("!BBHL", 0, 0x80, 0, epoch) + outside
    else:
        right = struct.pack("!BBHL", 0, 0x82, 0, epoch) + request[4:6] + struct.pack("!HL", port, 1)
    return [*(mutated(right) for _ in range(ANSWERS)), right]


def mutated(datagram: bytes) -> bytes:
    changed = bytearray(datagram)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed[: rng.randrange(len(changed) + 1)] + rng.randbytes(rng.choice([0, 0, 1, 1400])))


async def answer_datagrams(own: str) -> None:
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
        await listening.bind((own, 5351))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(announce, listening)
            while True:
                request, sender = await listening.recvfrom(2048)
                done["requests"] += 1
                for answer in broken_answers(request):
                    await listening.sendto(answer, sender)


async def announce(sending: trio.socket.SocketType) -> None:
    while True:
        await sending.sendto(rng.randbytes(12), ("224.0.0.1", 5350))
        done["announcements"] += 1
        if done["announcements"] % 500 == 0:
            print(json.dumps(done), flush=True)
        await trio.sleep(PAUSE_S)


async def answer_searches(own: str) -> None:
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        await listening.bind(("", 1900))
        membership = socket.inet_aton("239.255.255.250") + socket.inet_aton(own)
        listening.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        while True:
            _, sender = await listening.recvfrom(2048)
            done["searches"] += 1
            for number in range(ANSWERS):
                where = f"http://{own}:5000/{number}" if number else "http://192.168.77.3/x"
                await listening.sendto(f"HTTP/1.1 200 OK\r\nLOCATION: {where}\r\n\r\n".encode(), sender)
                await listening.sendto(rng.randbytes(2000), sender)


async def describe(stream: trio.SocketStream) -> None:
    done["descriptions"] += 1
    try:
        async with stream:
            await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
            while True:
                await stream.send_all(b"<device>" * 10_000)
    except trio.BrokenResourceError:
        pass


async def main(own: str) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_datagrams, own)
        nursery.start_soon(answer_searches, own)
        await trio.serve_tcp(describe, 5000, host=own)


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
