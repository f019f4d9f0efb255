"""Ask a router's daemon to open a port, and check that a stranger can connect to it: UPnP IGD 1 or 2, and PCP.

    UPnP  node   M-SEARCH, to all hosts of the home --> its answer's LOCATION --> GET the description
          node   AddPortMapping, at the URL that the description names for WANIPConnection
    PCP   node   MAP, to the router --> the port that the internet can connect to

Specifications: UPnP Device Architecture 1.0, WANIPConnection:1; RFC 6887.
"""

from __future__ import annotations

import os
import re
import socket
import struct
from ipaddress import IPv6Address
from urllib.parse import urljoin, urlsplit

from benchmarks.network.home import Home
from benchmarks.network.homes import WITNESSES, Laboratory
from benchmarks.network.namespaces import socket_in
from benchmarks.network.ports import IN, Port, ProbeFailed, answer_timeout_s, answer_to, seen_by

LEASE_S = 120
"""Requested lifetime of the mapping; it is not renewed, so it ends by itself."""

ANSWER_S = 2.0
"""Timeout of one try: a daemon may wait for up to MX, a second, before it answers a search."""

TRIES = 3
"""Number of tries: a datagram may be lost, for example if it comes before the daemon listens."""

SSDP = ("239.255.255.250", 1900)
SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:"
SEARCH = f'M-SEARCH * HTTP/1.1\r\nHOST: {SSDP[0]}:{SSDP[1]}\r\nMAN: "ssdp:discover"\r\nMX: 1\r\nST: {SERVICE}1\r\n\r\n'

ADD_PORT_MAPPING = """<?xml version="1.0"?>
<s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"
 s:encodingStyle="http://schemas.xmlsoap.org/soap/encoding/"><s:Body>
<u:AddPortMapping xmlns:u="{service}"><NewRemoteHost></NewRemoteHost><NewExternalPort>{port}</NewExternalPort>
<NewProtocol>TCP</NewProtocol><NewInternalPort>{port}</NewInternalPort><NewInternalClient>{client}</NewInternalClient>
<NewEnabled>1</NewEnabled><NewPortMappingDescription>probe</NewPortMappingDescription>
<NewLeaseDuration>{lease_s}</NewLeaseDuration></u:AddPortMapping></s:Body></s:Envelope>
"""

PCP_PORT, PCP_VERSION, MAP, SUCCESS = 5351, 2, 1, 0
REQUEST, ANSWER = struct.Struct(">BBHI16s"), struct.Struct(">BBBBII12x")
MAPPING = struct.Struct(">12sB3xHH16s")
"""A nonce, the protocol, the inner port, the outer one, and the outer address."""


def check_daemon(lab: Laboratory, home: Home) -> None:
    """Have a port of a node opened, and connect to it as a stranger. Raises ProbeFailed."""
    if not home.kind.daemon:
        return
    node, (east, west) = home.nodes[0], WITNESSES
    with Port(lab, node, socket.AF_INET) as mine, Port(lab, east, socket.AF_INET) as witness:
        host, _ = seen_by(mine, witness)
        port = _by_upnp(lab, node, mine.number) if home.kind.daemon == "upnp" else _by_pcp(lab, node, mine.number)
        with Port(lab, west, socket.AF_INET) as stranger:
            answer = answer_to(stranger.connect((host, port)), answer_timeout_s(lab, node, west))
    if answer != IN:
        raise ProbeFailed(
            f"the router of {node} ({home.kind.name}) said that port {port} is open, but a stranger's SYN was {answer}"
        )


def _by_upnp(lab: Laboratory, node: str, port: int) -> int:
    """Let UPnP open a port, and return it."""
    with socket_in(lab.namespace(node), socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(ANSWER_S)
        found = _ask(asking, SEARCH.encode("ascii"), SSDP, f"no UPnP daemon answers a search of {node}")
    if (location := re.search(rb"(?i)^location:\s*(\S+)", found, re.M)) is None:
        raise ProbeFailed(f"a UPnP daemon answered {node} without a location: {found!r}")
    root = location[1].decode("ascii")
    description = _http(lab, node, root)
    control = re.search(rf"({SERVICE}[12])</serviceType>.*?<controlURL>(.*?)</controlURL>", description, re.S)
    if control is None:
        raise ProbeFailed(f"the description of the router of {node} has no {SERVICE}")
    service, place = control.groups()
    body = ADD_PORT_MAPPING.format(service=service, port=port, client=lab.address(node), lease_s=LEASE_S)
    answer = _http(lab, node, urljoin(root, place), f"{service}#AddPortMapping", body)
    if "AddPortMappingResponse" not in answer:
        raise ProbeFailed(f"the UPnP daemon of {node} opened no port: {answer[-300:]!r}")
    return port


def _http(lab: Laboratory, node: str, url: str, action: str = "", body: str = "") -> str:
    """Get a page of a daemon in the home, or call an action of it."""
    parts = urlsplit(url)
    method = "POST" if action else "GET"
    soap = f'SOAPAction: "{action}"\r\nContent-Type: text/xml\r\n' if action else ""
    head = f"{method} {parts.path} HTTP/1.0\r\nHost: {parts.netloc}\r\n{soap}Content-Length: {len(body)}\r\n\r\n"
    with socket_in(lab.namespace(node), socket.AF_INET, socket.SOCK_STREAM) as asking:
        asking.settimeout(ANSWER_S)
        try:
            asking.connect((parts.hostname, parts.port or 80))
            asking.sendall((head + body).encode("utf-8"))
            with asking.makefile("rb") as answer:
                return answer.read().decode("utf-8", errors="replace")
        except OSError as error:
            raise ProbeFailed(f"the UPnP daemon of {node} does not answer at {url}: {error}") from error


def _by_pcp(lab: Laboratory, node: str, port: int) -> int:
    """Let PCP open a port, and return the port that the router gave for it."""
    client = IPv6Address(f"::ffff:{lab.address(node)}").packed
    nonce = os.urandom(12)
    wanted = MAPPING.pack(nonce, socket.IPPROTO_TCP, port, port, IPv6Address("::ffff:0.0.0.0").packed)
    request = REQUEST.pack(PCP_VERSION, MAP, 0, LEASE_S, client) + wanted
    with socket_in(lab.namespace(node), socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(ANSWER_S)
        answer = _ask(asking, request, (lab.gateway(node), PCP_PORT), f"no PCP daemon answers {node}")
    version, operation, _, result, *_ = ANSWER.unpack_from(answer)
    if (version, operation, result) != (PCP_VERSION, MAP | 0x80, SUCCESS):
        raise ProbeFailed(f"the PCP daemon of {node} opened no port: version {version}, result {result}")
    return int(MAPPING.unpack_from(answer, ANSWER.size)[3])


def _ask(asking: socket.socket, request: bytes, place: tuple[str, int], otherwise: str) -> bytes:
    """Send a datagram until an answer comes. Raises ProbeFailed, with a message that begins with `otherwise`."""
    why = ""
    for _ in range(TRIES):
        try:
            asking.sendto(request, place)
            return asking.recv(4096)
        except OSError as error:
            why = str(error)
    raise ProbeFailed(f"{otherwise}: {why}")
