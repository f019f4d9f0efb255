"""Write the requests and read the answers of PCP, the Port Control Protocol, in pure functions over bytes.

    request   version 2 | opcode | reserved 2 | lifetime 4 | client's address 16
    answer    version 2 | 0x80 + opcode | reserved 1 | result 1 | lifetime 4 | epoch 4 | reserved 12
    MAP adds  nonce 12 | protocol 1 | reserved 3 | internal port 2 | external port 2 | external address 16

IPv4 addresses are written as ::ffff:a.b.c.d. Over IPv6 nothing is translated: MAP opens a pinhole in the router's
firewall, and its external port and address are our own.

Specification: RFC 6887, sections 7 (formats), 7.4 (results), 11 (MAP), 14.1 (ANNOUNCE).

Invariants:

- A datagram is read whole or rejected with BadDatagram, which says why; nothing else is raised.
- An answer that grants a port names an address that others could dial.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass
from enum import IntEnum

from swarm.libp2p.port_mapping.outcomes import BadDatagram, IPAddress, why_no_external

VERSION = 2
PORT = 5351
"""The port on which gateways listen, for NAT-PMP as well (RFC 6887 section 19.1)."""

NONCE_BYTES = 12
MAX_BYTES = 1100
"""RFC 6887 section 7: no message is longer."""

TCP = 6
"""TCP's number in the registry of IP protocols."""

_RESPONSE = 0x80
_REQUEST = struct.Struct("!BBxxL16s")
_ANSWER = struct.Struct("!BBxBLL12x")
_MAP = struct.Struct("!12sB3xHH16s")


class Opcode(IntEnum):
    """The kind of a request."""

    ANNOUNCE = 0
    MAP = 1


class Result(IntEnum):
    """Results of RFC 6887 section 7.4."""

    SUCCESS = 0
    UNSUPP_VERSION = 1
    NOT_AUTHORIZED = 2
    MALFORMED_REQUEST = 3
    UNSUPP_OPCODE = 4
    UNSUPP_OPTION = 5
    MALFORMED_OPTION = 6
    NETWORK_FAILURE = 7
    NO_RESOURCES = 8
    UNSUPP_PROTOCOL = 9
    USER_EX_QUOTA = 10
    CANNOT_PROVIDE_EXTERNAL = 11
    ADDRESS_MISMATCH = 12
    EXCESSIVE_REMOTE_PEERS = 13


MEANINGS = {
    Result.UNSUPP_VERSION: "the router speaks another version of PCP",
    Result.NOT_AUTHORIZED: "the router does not allow it",
    Result.MALFORMED_REQUEST: "the router could not read our request",
    Result.UNSUPP_OPCODE: "the router maps no ports by PCP",
    Result.UNSUPP_OPTION: "the router lacks an option that it needs",
    Result.MALFORMED_OPTION: "the router could not read an option",
    Result.NETWORK_FAILURE: "the router has no connection to the internet, or no address there",
    Result.NO_RESOURCES: "the router has no room for another mapping",
    Result.UNSUPP_PROTOCOL: "the router maps no TCP ports",
    Result.USER_EX_QUOTA: "this machine has all the mappings that the router grants it",
    Result.CANNOT_PROVIDE_EXTERNAL: "the router cannot give this external port",
    Result.ADDRESS_MISMATCH: "another router stands between us and the one that was asked",
    Result.EXCESSIVE_REMOTE_PEERS: "too many remote peers were named",
}


@dataclass(frozen=True, kw_only=True)
class PcpAnswer:
    """An answer to any request; an answer to ANNOUNCE holds only this."""

    opcode: int
    result: int
    lifetime_s: int
    epoch: int


@dataclass(frozen=True, kw_only=True)
class MapAnswer(PcpAnswer):
    """An answer to MAP, also if it refuses."""

    nonce: bytes
    protocol: int
    internal_port: int
    external_port: int
    external_host: IPAddress


@dataclass(frozen=True, kw_only=True)
class VersionUnsupported:
    """The gateway does not speak PCP 2. Version 0 is NAT-PMP."""

    speaks: int
    epoch: int | None = None


def encode_announce(client: IPAddress) -> bytes:
    """Return the request that changes nothing, and is answered with the gateway's epoch."""
    return _REQUEST.pack(VERSION, Opcode.ANNOUNCE, 0, _as_ipv6(client))


def encode_map(
    *, client: IPAddress, nonce: bytes, internal_port: int, external_port: int, external: IPAddress, lifetime_s: int
) -> bytes:
    """Return the request for a TCP port.

    `external_port` and `external` are our wishes, 0 and :: for none. Lifetime 0 deletes the mapping.
    """
    header = _REQUEST.pack(VERSION, Opcode.MAP, lifetime_s, _as_ipv6(client))
    return header + _MAP.pack(nonce, TCP, internal_port, external_port, _as_ipv6(external))


def decode_answer(datagram: bytes) -> PcpAnswer | MapAnswer | VersionUnsupported:
    """Return the answer of a gateway. Raises BadDatagram."""
    if len(datagram) < 4:
        raise BadDatagram(f"{len(datagram)} bytes are no answer")
    if datagram[0] != VERSION:
        return _other_version(datagram)
    if not _ANSWER.size <= len(datagram) <= MAX_BYTES or len(datagram) % 4:
        raise BadDatagram(f"{len(datagram)} bytes are no answer: 24 to 1100 were expected, a multiple of 4")
    _, opcode, result, lifetime_s, epoch = _ANSWER.unpack_from(datagram)
    if not opcode & _RESPONSE:
        raise BadDatagram("it is a request")
    opcode &= ~_RESPONSE
    if result == Result.UNSUPP_VERSION:
        return VersionUnsupported(speaks=VERSION, epoch=epoch)
    if opcode != Opcode.MAP or len(datagram) < _ANSWER.size + _MAP.size:
        if opcode == Opcode.MAP and result == Result.SUCCESS:
            raise BadDatagram(f"{len(datagram)} bytes are too few for a mapping")
        return PcpAnswer(opcode=opcode, result=result, lifetime_s=lifetime_s, epoch=epoch)
    nonce, protocol, internal_port, external_port, packed = _MAP.unpack_from(datagram, _ANSWER.size)
    host = _from_ipv6(packed)
    if result == Result.SUCCESS and lifetime_s and (why := why_no_external(host, external_port)):
        raise BadDatagram(f"it grants an address that cannot be used: {why}")
    return MapAnswer(
        opcode=opcode,
        result=result,
        lifetime_s=lifetime_s,
        epoch=epoch,
        nonce=nonce,
        protocol=protocol,
        internal_port=internal_port,
        external_port=external_port,
        external_host=host,
    )


def explain(result: int) -> str:
    """Return the meaning of a result that is no success."""
    try:
        return MEANINGS[Result(result)]
    except (ValueError, KeyError):
        return f"the router answered with result {result}, which PCP does not know"


def _other_version(datagram: bytes) -> VersionUnsupported:
    """Read an answer of another version. NAT-PMP gateways answer in their own form (RFC 6886 3.5, RFC 6887 9)."""
    version, opcode = datagram[0], datagram[1]
    if not opcode & _RESPONSE:
        raise BadDatagram("it is a request")
    result = int.from_bytes(datagram[2:4], "big") if version == 0 else datagram[3]
    if result != Result.UNSUPP_VERSION:
        raise BadDatagram(f"its version is {version}")
    epoch = int.from_bytes(datagram[4:8], "big") if version == 0 and len(datagram) >= 8 else None
    return VersionUnsupported(speaks=version, epoch=epoch)


def _as_ipv6(host: IPAddress) -> bytes:
    if isinstance(host, ipaddress.IPv4Address):
        return b"\0" * 10 + b"\xff\xff" + host.packed
    return host.packed


def _from_ipv6(packed: bytes) -> IPAddress:
    host = ipaddress.IPv6Address(packed)
    return host.ipv4_mapped or host
