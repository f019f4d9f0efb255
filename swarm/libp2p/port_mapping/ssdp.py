"""Find where a gateway describes itself for UPnP: search the network, and trust only answers of the gateway.

Any machine on the network can answer a search, and name any URL in the router's name. So an answer counts only if it
comes from the gateway's address and names a URL there. miniupnpc's own search would fetch any URL that is named.

Specification: UPnP Device Architecture 1.1, section 1.3 (search), 1.3.3 (answers).

Invariants:

- A location is an http URL at the gateway's own address, of printable ASCII, at most MAX_URL_CHARS long.
- A search takes at most TIMEOUT_S and returns at most MAX_LOCATIONS.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from urllib.parse import urlsplit

import trio

from swarm.libp2p.port_mapping.gateway_client import RETRANSMIT_S
from swarm.libp2p.port_mapping.outcomes import BadDatagram, IPAddress

GROUP, PORT = "239.255.255.250", 1900
TTL = 2
"""Time to live of multicast datagrams, by the specification."""

TARGETS = (
    "urn:schemas-upnp-org:device:InternetGatewayDevice:2",
    "urn:schemas-upnp-org:device:InternetGatewayDevice:1",
    "upnp:rootdevice",
)

MAX_ANSWER_BYTES = 2048
"""Answers have about 400 bytes."""

MAX_URL_CHARS = 256

MAX_LOCATIONS = 4
"""Descriptions. A router may describe several devices, and one of them is the gateway."""

MAX_HEARD = 128
"""Datagrams that are read in one search: a home has dozens of devices that answer several times."""

log = logging.getLogger(__name__)


def encode_search(target: str) -> bytes:
    """Return the search for devices of one kind, to be answered within a second."""
    lines = [
        "M-SEARCH * HTTP/1.1",
        f"HOST: {GROUP}:{PORT}",
        'MAN: "ssdp:discover"',
        "MX: 1",
        f"ST: {target}",
    ]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def decode_location(datagram: bytes, sender: str, gateway: IPAddress) -> str:
    """Return the URL that an answer names. Raises BadDatagram."""
    if sender != str(gateway):
        raise BadDatagram(f"{sender} is not the gateway")
    if len(datagram) > MAX_ANSWER_BYTES:
        raise BadDatagram(f"it has more than {MAX_ANSWER_BYTES} bytes")
    status, *headers = datagram.decode("latin-1").split("\r\n")
    if status.split()[:2] not in (["HTTP/1.1", "200"], ["HTTP/1.0", "200"]):
        raise BadDatagram("it is no answer to a search")
    for name, colon, value in (header.partition(":") for header in headers):
        if colon and name.strip().lower() == "location":
            return _checked(value.strip(), gateway)
    raise BadDatagram("it names no location")


def why_not_at(url: str, gateway: IPAddress) -> str:
    """Return why the URL is not one that we fetch from the gateway, as a clause; empty if it is."""
    if len(url) > MAX_URL_CHARS or not url.isascii() or not url.isprintable() or " " in url:
        return f"a URL has at most {MAX_URL_CHARS} printable characters"
    try:
        parts = urlsplit(url)
        host, port = ipaddress.ip_address(parts.hostname or ""), parts.port
    except ValueError:
        return f"{url} names no address"
    if parts.scheme != "http" or parts.username is not None or port == 0:
        return f"{url} is no plain http URL"
    if host != gateway:
        return f"{url} is not at the gateway, {gateway}"
    return ""


async def find_locations(own: IPAddress, gateway: IPAddress) -> list[str]:
    """Return the gateway's descriptions in the order of its answers; waits at most TIMEOUT_S."""
    found: list[str] = []
    try:
        with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as searching:
            searching.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, TTL)
            searching.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, own.packed)
            await searching.bind((str(own), 0))
            for wait_s in RETRANSMIT_S:
                await _search(searching, gateway, found, wait_s)
                if found:
                    break
    except OSError as error:
        log.debug("no search for UPnP from %s: %s", own, error)
    return found


async def _search(searching: trio.socket.SocketType, gateway: IPAddress, found: list[str], wait_s: float) -> None:
    for target in TARGETS:
        await searching.sendto(encode_search(target), (GROUP, PORT))
    with trio.move_on_after(wait_s):
        await _listen(searching, gateway, found)


async def _listen(searching: trio.socket.SocketType, gateway: IPAddress, found: list[str]) -> None:
    for _ in range(MAX_HEARD):
        datagram, sender = await searching.recvfrom(MAX_ANSWER_BYTES + 1)
        try:
            location = decode_location(datagram, sender[0], gateway)
        except BadDatagram as bad:
            log.debug("an answer to our search for UPnP is ignored: %s", bad)
            continue
        if location not in found and len(found) < MAX_LOCATIONS:
            found.append(location)
    await trio.sleep_forever()


def _checked(url: str, gateway: IPAddress) -> str:
    if why := why_not_at(url, gateway):
        raise BadDatagram(why)
    return url
