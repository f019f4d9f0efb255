"""Write the requests and read the answers of NAT-PMP, which PCP replaced, in pure functions over bytes.

    request   version 0 | opcode                     for the gateway's external address
              version 0 | opcode | reserved 2 | internal port 2 | external port 2 | lifetime 4
    answer    version 0 | 0x80 + opcode | result 2 | epoch 4 | address 4
              version 0 | 0x80 + opcode | result 2 | epoch 4 | internal port 2 | external port 2 | lifetime 4

Specification: RFC 6886, sections 3.2 (address), 3.3 (mappings), 3.5 (results). There is no nonce, so only the gateway's
address and the internal port identify an answer. IPv4 only.

Invariants:

- A datagram is read whole or rejected with BadDatagram, which says why; nothing else is raised.
- An answer that grants a port, or that names an address, names what others could dial.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass
from enum import IntEnum

from swarm.libp2p.port_mapping.outcomes import BadDatagram, why_no_external

VERSION = 0

_RESPONSE = 0x80
_MAP_REQUEST = struct.Struct("!BBxxHHL")
_HEADER = struct.Struct("!BBHL")
_MAP_ANSWER = struct.Struct("!HHL")

ANY_PORT = 1
"""Stands for the port where none is named: only the address is checked."""


class Opcode(IntEnum):
    """The kind of a request. MAP_UDP is 1, which we never ask for."""

    ADDRESS = 0
    MAP_TCP = 2


class Result(IntEnum):
    """Results of RFC 6886 section 3.5."""

    SUCCESS = 0
    UNSUPPORTED_VERSION = 1
    NOT_AUTHORIZED = 2
    NETWORK_FAILURE = 3
    OUT_OF_RESOURCES = 4
    UNSUPPORTED_OPCODE = 5


MEANINGS = {
    Result.UNSUPPORTED_VERSION: "the router speaks another version of NAT-PMP",
    Result.NOT_AUTHORIZED: "the router does not allow it",
    Result.NETWORK_FAILURE: "the router has no connection to the internet, or no address there",
    Result.OUT_OF_RESOURCES: "the router has no room for another mapping",
    Result.UNSUPPORTED_OPCODE: "the router maps no TCP ports by NAT-PMP",
}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """An answer that refuses."""

    opcode: int
    result: int
    epoch: int


@dataclass(frozen=True, kw_only=True)
class ExternalAddress:
    """The gateway's external address."""

    host: ipaddress.IPv4Address
    epoch: int


@dataclass(frozen=True, kw_only=True)
class PortAnswer:
    """The external port for an internal one. Lifetime 0 means that there is none any more."""

    internal_port: int
    external_port: int
    lifetime_s: int
    epoch: int


def encode_address_request() -> bytes:
    """Return the request for the gateway's external address, which changes nothing."""
    return bytes([VERSION, Opcode.ADDRESS])


def encode_map(*, internal_port: int, external_port: int, lifetime_s: int) -> bytes:
    """Return the request for a TCP port. `external_port` is our wish; 0 with lifetime 0 deletes the mapping."""
    return _MAP_REQUEST.pack(VERSION, Opcode.MAP_TCP, internal_port, external_port, lifetime_s)


def decode_answer(datagram: bytes) -> Failure | ExternalAddress | PortAnswer:
    """Return the answer of a gateway. Raises BadDatagram."""
    if len(datagram) < _HEADER.size:
        raise BadDatagram(f"{len(datagram)} bytes are no answer")
    version, opcode, result, epoch = _HEADER.unpack_from(datagram)
    if version != VERSION:
        raise BadDatagram(f"its version is {version}")
    if not opcode & _RESPONSE:
        raise BadDatagram("it is a request")
    opcode &= ~_RESPONSE
    if result != Result.SUCCESS:
        return Failure(opcode=opcode, result=result, epoch=epoch)
    body = datagram[_HEADER.size :]
    if opcode == Opcode.ADDRESS and len(body) == 4:
        host = ipaddress.IPv4Address(body)
        if why := why_no_external(host, ANY_PORT):
            raise BadDatagram(f"it names an address that cannot be used: {why}")
        return ExternalAddress(host=host, epoch=epoch)
    if opcode == Opcode.MAP_TCP and len(body) == _MAP_ANSWER.size:
        internal_port, external_port, lifetime_s = _MAP_ANSWER.unpack(body)
        if lifetime_s and not external_port:
            raise BadDatagram("it grants port 0")
        return PortAnswer(internal_port=internal_port, external_port=external_port, lifetime_s=lifetime_s, epoch=epoch)
    raise BadDatagram(f"opcode {opcode} with {len(datagram)} bytes answers no request of ours")


def explain(result: int) -> str:
    """Return the meaning of a result that is no success."""
    try:
        return MEANINGS[Result(result)]
    except (ValueError, KeyError):
        return f"the router answered with result {result}, which NAT-PMP does not know"
