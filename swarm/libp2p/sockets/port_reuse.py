"""Open listening sockets, and connections that leave from the ports of these sockets.

A router that maps a port of this machine to one of its own does so for connections that leave from that port. So the
address that others see for a connection from our listening port is one where they may knock. Two sockets share a port
only if both ask for it (SO_REUSEPORT). A socket that asks for it before it is bound would share the port with
strangers.

Invariants:

- Nobody else on this machine can get a port that we listen on, unless it runs as the same user and asks for just that.
  A second `volery` does not, and gets the error that the port is taken.
- A connection that cannot leave from a listening port, since one to the same place already does, leaves from another.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum

import trio

TAKEN = frozenset({errno.EADDRINUSE, errno.EADDRNOTAVAIL})
"""The port already has a connection to the same place, or had one a moment ago (TIME_WAIT)."""


async def listen_on(host: str, port: int) -> list[trio.SocketListener]:
    """Return sockets that listen on `host`, from which connections may leave. Raises OSError, as for a port in use."""
    listeners = await trio.open_tcp_listeners(port, host=host)
    for listener in listeners:
        # Only now: bound without this option, the port was refused to us if any other program had it, with or without.
        with suppress(OSError, AttributeError):
            listener.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    return listeners


class Leaves(Enum):
    """The port of ours from which a connection leaves."""

    WHERE_WE_LISTEN = "where_we_listen"
    IF_IT_CAN = "if_it_can"
    """From a listening port if possible, else from any."""
    ANEW = "anew"
    """From a port of its own."""


async def connect_from(
    ports: Sequence[trio.SocketListener], host: str, port: int, leaves: Leaves = Leaves.IF_IT_CAN
) -> trio.SocketStream:
    """Connect to an IP address, from one of `ports` on which we listen or as `leaves` demands. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    source = next((one for one in ports if one.socket.family == family and _leads_out(one, host)), None)
    if leaves is Leaves.ANEW or (source is None and leaves is Leaves.IF_IT_CAN):
        return await _connect(family, (host, port), None)
    if source is None:
        raise OSError(errno.EADDRNOTAVAIL, f"nothing listens here that leads to {host}")
    try:
        return await _connect(family, (host, port), source.socket.getsockname())
    except OSError as error:
        if leaves is Leaves.WHERE_WE_LISTEN or error.errno not in TAKEN:
            raise
    return await _connect(family, (host, port), None)


async def _connect(
    family: socket.AddressFamily, remote: tuple[str, int], local: tuple[str, int] | None
) -> trio.SocketStream:
    connecting = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        if local is not None:
            connecting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(AttributeError):
                connecting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:  # or it would want the same IPv4 port as well
                connecting.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            await connecting.bind(local[:2])
        await connecting.connect(remote)
    except BaseException:  # also if it was cancelled: nothing else knows of this socket
        connecting.close()
        raise
    return trio.SocketStream(connecting)


def _leads_out(listener: trio.SocketListener, host: str) -> bool:
    """Return whether a connection to `host` may leave from this listener: from 127.0.0.1 nothing leaves the machine."""
    here = str(listener.socket.getsockname()[0])
    return _is_loopback(here) == _is_loopback(host) or here in {"0.0.0.0", "::"}


def _is_loopback(host: str) -> bool:
    return host == "::1" or host.startswith("127.")
