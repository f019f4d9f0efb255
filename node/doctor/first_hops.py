"""The first routers on the way to a host, as `tracepath` finds them: empty datagrams that are to die on the way.

Whether a provider's router stands behind the one at home is not told by anybody else, unless the router at home gives a
port. Each datagram lives for one router more, and the router at which it dies says so (RFC 792, time exceeded). Linux
hands that to whoever sent it, without privileges (IP_RECVERR); elsewhere nothing is found out.

Invariants:
- MAX_HOPS datagrams are sent, to the host that was named, and none other.
- What is returned is what routers said of themselves.
"""

from __future__ import annotations

import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass

import trio

MAX_HOPS = 4
"""Behind a router at home and one or two of the provider's begins the internet."""

HOP_S = 2.0
"""For the answers: the routers that are asked about are the nearest ones."""

PORT = 33434
"""Where nobody listens, by `traceroute`'s custom."""

IP_RECVERR = 11
"""Of <linux/in.h>; Python does not name it."""

ERROR = struct.Struct("=IBBBBII")
"""`struct sock_extended_err` of <linux/errqueue.h>; the address of who said so follows, as a `sockaddr_in`."""

ORIGIN_ICMP = 2
UNREACHABLE, EXCEEDED = 3, 11
"""Types of ICMP: the host itself says the first, a router on the way the second."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Who said that it got a datagram; `is_end`: it is the host that was meant, or leads no further."""

    host: str
    is_end: bool


async def find_first_hops(host: str) -> tuple[str, ...] | None:
    """Return the IPv4 addresses of the first routers on the way to `host`, those that answered, the nearest first; None
    where that cannot be found out."""
    if not sys.platform.startswith("linux"):
        return None
    answers: dict[int, Answer] = {}
    with trio.move_on_after(HOP_S):
        async with trio.open_nursery() as nursery:
            for ttl in range(1, MAX_HOPS + 1):
                nursery.start_soon(_ask, host, ttl, answers)
    return routers_of(answers) or None


def routers_of(answers: dict[int, Answer]) -> tuple[str, ...]:
    """The routers among those who answered, by how far away they are: none from the end on."""
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
    """Who said what, from the control messages of one error; None where a router said nothing."""
    for level, kind, data in control:
        if (level, kind) != (socket.IPPROTO_IP, IP_RECVERR) or len(data) < ERROR.size + 8:
            continue
        _, origin, icmp, _, _, _, _ = ERROR.unpack_from(data)
        if origin == ORIGIN_ICMP and icmp in (UNREACHABLE, EXCEEDED):
            host = socket.inet_ntoa(data[ERROR.size + 4 : ERROR.size + 8])
            return Answer(host=host, is_end=icmp == UNREACHABLE)
    return None
