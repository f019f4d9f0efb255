"""Hear routers that announce to their network that they have restarted, and so have forgotten every mapping.

They send to 224.0.0.1 and ff02::1, port 5350: NAT-PMP its external address, PCP an ANNOUNCE (RFC 6886 section 3.2.1,
RFC 6887 section 14.1). Every machine on the network can send such a datagram in the router's name, so it is only a
hint. It makes us ask the gateway itself, and `lease.MIN_PAUSE_S` limits how often.

Invariants:

- Only datagrams from a gateway's own address and port are heard.
- If the port cannot be opened, this machine hears nothing, and all else goes on: the gateways are asked regularly.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
import struct
from collections.abc import Callable

import trio

from swarm.libp2p.port_mapping.outcomes import IPAddress
from swarm.libp2p.port_mapping.pcp import MAX_BYTES, PORT

CLIENT_PORT = 5350
"""The port on which clients listen for announcements of gateways."""

GROUP = "224.0.0.1"
"""All systems on this network. IPv6 gateways use ff02::1, which is not heard; our regular checks make up for that."""

PAUSE_S = 0.1
"""Seconds between two datagrams that are read, so that a flood costs ten reads a second."""

log = logging.getLogger(__name__)


async def hear_announcements(own: IPAddress, gateway: IPAddress, on_heard: Callable[[], None]) -> None:
    """Call `on_heard` whenever the IPv4 gateway announces itself on the network of our address `own`.

    Runs until cancelled, or until the port cannot be used.
    """
    try:
        with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
            await _join(listening, own)
            while True:
                _, sender = await listening.recvfrom(MAX_BYTES + 1)
                if sender[1] == PORT and ipaddress.ip_address(sender[0]) == gateway:
                    on_heard()
                await trio.sleep(PAUSE_S)
    except OSError as error:
        log.debug("no announcements are heard on %s: %s", own, error)


async def _join(listening: trio.socket.SocketType, own: IPAddress) -> None:
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if hasattr(socket, "SO_REUSEPORT"):  # other programs on this machine listen there as well
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    await listening.bind(("", CLIENT_PORT))
    membership = struct.pack("4s4s", socket.inet_aton(GROUP), own.packed)
    listening.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
