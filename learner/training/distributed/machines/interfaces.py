"""Which network interface the ranks of several machines speak over: the one by which the machines have met.

gloo asks for the address of the machine's own name otherwise, which Debian maps to 127.0.1.1, and nccl takes the first
interface that it likes. What the operator set is left alone.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

import psutil

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"

LOOPBACK = "127.0.0.1"

MAPPED = "::ffff:"
"""What stands before an IPv4 address where a socket takes both kinds."""


def connection_to(port: int) -> tuple[str, str]:
    """Both ends of this process's connection to `port` of another process: (our address, theirs); ("", "") if none."""
    for one in psutil.Process().net_connections("tcp"):
        if one.status == psutil.CONN_ESTABLISHED and one.raddr and one.raddr.port == port:
            return plain(one.laddr.ip), plain(one.raddr.ip)
    return "", ""


def plain(address: str) -> str:
    """An address as interfaces have it: without a scope, IPv4 without the words around it."""
    return address.lower().removeprefix(MAPPED).partition("%")[0]


def name_of(address: str) -> str:
    """The interface of this machine that has `address`; "" if none."""
    for name, found in psutil.net_if_addrs().items():
        if any(plain(one.address) == address for one in found if one.address):
            return name
    return ""


def speak_over(addresses: Sequence[str]) -> tuple[str, ...]:
    """Let gloo and nccl of this process's children speak over the interface that has most of `addresses`, which are
    this machine's. Return the interfaces' names, that one first; none where no interface has any.
    """
    names = tuple(name for name, _ in Counter(filter(None, map(name_of, addresses))).most_common())
    if names:
        os.environ.setdefault(GLOO, names[0])
        os.environ.setdefault(NCCL, f"={names[0]}")  # exactly that one: eth1 alone would be eth10, too
    return names


def stay_here() -> None:
    """Let gloo of this process and its children speak over the loopback: all are on this machine, whose name may have
    no address, or one that goes away with a network. nccl finds its way inside a machine by itself.
    """
    if name := name_of(LOOPBACK):
        os.environ.setdefault(GLOO, name)
