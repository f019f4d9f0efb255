"""Send requests to one gateway over one UDP socket, repeatedly until it answers or TIMEOUT_S is over.

The socket is connected, so the kernel delivers only datagrams from the gateway's own address and port.

Invariants:

- A request takes at most TIMEOUT_S, whatever the gateway sends meanwhile.
- One request is open at a time; the others wait for their turn.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from swarm.libp2p.port_mapping.gateways import Gateway
from swarm.libp2p.port_mapping.outcomes import BadDatagram, IPAddress
from swarm.libp2p.port_mapping.pcp import MAX_BYTES, PORT

RETRANSMIT_S = (0.25, 0.5, 1.0, 2.0)
"""Seconds to wait after each transmission. RFC 6886 begins so and goes on to 64 s, RFC 6887 begins with 3 s. Both have
nothing else to try, while we have UPnP.
"""

TIMEOUT_S = sum(RETRANSMIT_S)

MAX_HEARD = 64
"""Datagrams that are read after each transmission. If a gateway sends more, they wait for the next one."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class GatewayUnreachable(OSError):
    """No datagram can be sent to the gateway: the network is down, or the address is no longer ours."""


class GatewayClient:
    """Ask one gateway, one request at a time."""

    def __init__(self, connected: trio.socket.SocketType, own: IPAddress, gateway: Gateway) -> None:
        self.own = own
        """Our address on the way to the gateway."""
        self.gateway = gateway
        self._socket = connected
        self._turn = trio.Lock()

    async def ask(
        self,
        datagrams: Sequence[bytes],
        read: Callable[[bytes], T | None],
        is_enough: Callable[[], bool] = lambda: False,
    ) -> T | None:
        """Send the datagrams repeatedly until `read` returns a result for an answer; return it, or None if none came.

        `read` may raise BadDatagram, and returns None for an answer to another request. Before each repetition,
        `is_enough` may say that there is nothing more to wait for. Raises GatewayUnreachable.
        """
        async with self._turn:
            for wait_s in RETRANSMIT_S:
                if not await self._send(datagrams):
                    return None
                with trio.move_on_after(wait_s):
                    return await self._listen(read)
                if is_enough():
                    return None
        return None

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    async def _send(self, datagrams: Sequence[bytes]) -> bool:
        """Send the datagrams; return False if the gateway said that nothing listens there."""
        for datagram in datagrams:
            for _ in range(2):  # the first send may report an earlier request's error
                try:
                    await self._socket.send(datagram)
                    break
                except ConnectionRefusedError:
                    continue
                except OSError as error:
                    raise GatewayUnreachable(f"{self.gateway}: {error.strerror or error}") from error
            else:
                return False
        return True

    async def _listen(self, read: Callable[[bytes], T | None]) -> T | None:
        """Return the first answer that can be read; None if the gateway says that nothing listens there."""
        for _ in range(MAX_HEARD):
            try:
                datagram = await self._socket.recv(MAX_BYTES + 1)
            except ConnectionRefusedError:  # ICMP: the gateway has no such port
                return None
            except OSError as error:
                raise GatewayUnreachable(f"{self.gateway}: {error.strerror or error}") from error
            try:
                if (answer := read(datagram)) is not None:
                    return answer
            except BadDatagram as bad:
                log.debug("%s sent a datagram that is no answer: %s", self.gateway, bad)
        await trio.sleep_forever()
        return None


async def open_client(gateway: Gateway, own: IPAddress | None = None) -> GatewayClient:
    """Return a client of the gateway, from `own` if given. The caller closes it. Raises GatewayUnreachable."""
    family = socket.AF_INET if gateway.host.version == 4 else socket.AF_INET6
    try:
        connected = trio.socket.socket(family, socket.SOCK_DGRAM)
    except OSError as error:  # no more files may be open
        raise GatewayUnreachable(f"{gateway}: {error.strerror or error}") from error
    try:
        if own is not None:
            await connected.bind((str(own), 0))
        await connected.connect(_destination(gateway))
        named = ipaddress.ip_address(str(connected.getsockname()[0]).partition("%")[0])
    except OSError as error:
        connected.close()
        raise GatewayUnreachable(f"{gateway}: {error.strerror or error}") from error
    return GatewayClient(connected, named, gateway)


async def find_own_address(gateway: Gateway) -> IPAddress | None:
    """Return our address for traffic to the gateway, as the kernel chooses it; None if there is no route."""
    try:
        client = await open_client(gateway)
    except GatewayUnreachable:
        return None
    client.close()
    return client.own


def _destination(gateway: Gateway) -> tuple[str, int] | tuple[str, int, int, int]:
    if gateway.host.version == 4:
        return str(gateway.host), PORT
    scope = socket.if_nametoindex(gateway.interface) if gateway.host.is_link_local else 0
    return str(gateway.host), PORT, 0, scope
