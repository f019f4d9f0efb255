"""Send requests to one gateway over one UDP socket, again until it answers or the patience is over.

The socket is connected, so the kernel hands on only datagrams from the gateway's own address and port.

Invariants:
- A request takes at most PATIENCE_S, whatever the gateway sends meanwhile.
- One request is under way at a time; the others wait for their turn.
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
"""Waits after each sending. RFC 6886 begins so and goes on to 64 s, RFC 6887 begins with 3 s: both wait for nothing
else, while we have UPnP to try.
"""

PATIENCE_S = sum(RETRANSMIT_S)

MAX_HEARD = 64
"""Datagrams that are looked at after each sending. A gateway that sends more is not read until the next."""

T = TypeVar("T")

log = logging.getLogger(__name__)


class GatewayUnreachable(OSError):
    """No datagram can be sent to the gateway: the network is down, or the address is no longer ours."""


class GatewayClient:
    """See the module's paragraph."""

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
        """Send the datagrams, and again, until `read` makes something of an answer; None when nothing came of it.

        `read` may raise BadDatagram, and return None for what answers another request. Before each repetition,
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
        """Return whether the gateway has not said that nobody listens there."""
        for datagram in datagrams:
            for _ in range(2):  # the first may be told what became of an earlier request
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
        """Return the first answer that can be read; None if the gateway says that nobody listens there."""
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
                log.debug("%s sent what is no answer: %s", self.gateway, bad)
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
    """Return our address on the way to the gateway, as the kernel chooses it; None if there is no way."""
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
