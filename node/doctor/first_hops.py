"""Find the first routers on the way to a host, as `tracepath` does, by empty datagrams with a short lifetime.

Only this shows whether a provider's router stands behind the one at home, unless the router at home opens a port. Each
datagram may pass one router more than the one before, and the router that discards it says so (RFC 792, time exceeded).
Linux gives that report to the sender without privileges (IP_RECVERR). On other systems nothing is found out.

Invariants:

- MAX_HOPS datagrams are sent, only to the given host.
- The result holds only what routers said about themselves.
"""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass

import trio

MAX_HOPS = 4
"""Datagrams, one for each distance: the internet begins behind a router at home and one or two of the provider's."""

HOP_S = 2.0
"""Seconds for the answers: the routers that are asked are the nearest ones."""

PORT = 33434
"""A port on which no program listens, by the convention of `traceroute`."""

IP_RECVERR = 11
"""From <linux/in.h>; Python has no name for it."""

ERROR = struct.Struct("=IBBBBII")
"""`struct sock_extended_err` of <linux/errqueue.h>. The reporting host's address follows, as a `sockaddr_in`."""

ORIGIN_ICMP = 2
UNREACHABLE, EXCEEDED = 3, 11
"""ICMP types: the host itself sends the first, a router on the way the second."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The host that reported a datagram. `is_end`: it is the target, or the datagram could go no further."""

    host: str
    is_end: bool


async def find_first_hops(host: str) -> tuple[str, ...] | None:
    """Return the IPv4 addresses of the first routers on the way to `host` that answered, nearest first; None if that
    cannot be found out."""
    if not sys.platform.startswith("linux"):
        return None
    answers: dict[int, Answer] = {}
    with trio.move_on_after(HOP_S):
        async with trio.open_nursery() as nursery:
            for ttl in range(1, MAX_HOPS + 1):
                nursery.start_soon(_ask, host, ttl, answers)
    return routers_of(answers) or None


def routers_of(answers: dict[int, Answer]) -> tuple[str, ...]:
    """Return the routers among those that answered, by distance, up to the first answer that is the end."""
    found: list[str] = []
    for _, answer in sorted(answers.items()):
        if answer.is_end:
            break
        found.append(answer.host)
    return tuple(dict.fromkeys(found))


async def _ask(host: str, ttl: int, answers: dict[int, Answer]) -> None:
    with suppress(OSError), trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.setsockopt(socket.IPPROTO_IP, IP_RECVERR, 1)
        asking.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, ttl)
        await asking.connect((host, PORT + ttl))
        await asking.send(b"")
        _, control, _, _ = await asking.recvmsg(64, 512, socket.MSG_ERRQUEUE)
        if (answer := read_answer(control)) is not None:
            answers[ttl] = answer


def read_answer(control: list[tuple[int, int, bytes]]) -> Answer | None:
    """Return the sender and kind of the report in one error's control messages; None if no router reported."""
    for level, kind, data in control:
        if (level, kind) != (socket.IPPROTO_IP, IP_RECVERR) or len(data) < ERROR.size + 8:
            continue
        _, origin, icmp, _, _, _, _ = ERROR.unpack_from(data)
        if origin == ORIGIN_ICMP and icmp in (UNREACHABLE, EXCEEDED):
            host = socket.inet_ntoa(data[ERROR.size + 4 : ERROR.size + 8])
            return Answer(host=host, is_end=icmp == UNREACHABLE)
    return None
