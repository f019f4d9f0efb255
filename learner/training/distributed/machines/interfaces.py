"""Choose the network interface over which the ranks of several machines communicate: the one on which they have met.

Otherwise gloo uses the address of the machine's own name, which Debian maps to 127.0.1.1, and nccl takes the first
interface that it likes. Settings of the operator are kept.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence

import psutil

GLOO, NCCL = "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"

LOOPBACK = "127.0.0.1"

MAPPED = "::ffff:"
"""Prefix of an IPv4 address if a socket takes both kinds."""


def connection_to(port: int) -> tuple[str, str]:
    """Return both ends of this process's connection to `port` of another process: (its own address, the other's);
    ("", "") if there is none."""
    for one in psutil.Process().net_connections("tcp"):
        if one.status == psutil.CONN_ESTABLISHED and one.raddr and one.raddr.port == port:
            return plain(one.laddr.ip), plain(one.raddr.ip)
    return "", ""


def plain(address: str) -> str:
    """Return an address as interfaces list it: without a scope, and IPv4 without its IPv6 prefix."""
    return address.lower().removeprefix(MAPPED).partition("%")[0]


def name_of(address: str) -> str:
    """Return the interface of this machine that has `address`; "" if none."""
    for name, found in psutil.net_if_addrs().items():
        if any(plain(one.address) == address for one in found if one.address):
            return name
    return ""


def speak_over(addresses: Sequence[str]) -> tuple[str, ...]:
    """Let gloo and nccl of this process's children use the interface that has most of `addresses`, which are this
    machine's. Return the names of the interfaces that have some, that one first; empty if none has any.
    """
    names = tuple(name for name, _ in Counter(filter(None, map(name_of, addresses))).most_common())
    if names:
        os.environ.setdefault(GLOO, names[0])
        os.environ.setdefault(NCCL, f"={names[0]}")  # exactly that one: eth1 alone would match eth10, too
    return names


def stay_here() -> None:
    """Let gloo of this process and its children use the loopback. All are on this machine, whose name may have no
    address, or one that vanishes with a network. nccl finds its way inside a machine by itself.
    """
    if name := name_of(LOOPBACK):
        os.environ.setdefault(GLOO, name)
