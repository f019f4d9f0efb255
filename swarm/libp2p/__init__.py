"""Implement the transport with libp2p. This is the only package that imports libp2p; enter through `open_libp2p`.

- `circuit`: a connection whose bytes travel over a stream that a relay joins
- `connection`: one secure, multiplexed connection: what it may cost, and where it leads
- `connection_gate`: who may shake hands with this node, which strangers stay, and how often a peer may do what
- `dialler`: reaches a peer at one of its addresses
- `fair_slots`: a few places, kept open for peers that have not been here before
- `handshake_turns`: inbound handshakes, one in each pass of the scheduler
- `haste`: which peers accept a security proposal that already carries the first message
- `host`: combines TCP, TLS or noise, yamux and multistream behind the `Transport` interface
- `identify`: the protocols that every libp2p node answers: identify and ping
- `memory_budget`: how much memory connections may take: all strangers, all members, and each connection
- `multistream`: multistream-select 1.0: two ends agree on a protocol by its name
- `outlasting`: work that continues after its caller has stopped waiting for it
- `port_mapping`: a port of the home router, so that others can dial this node
- `racing`: several attempts at the same thing; the first success counts
- `reachability`: how nodes behind routers reach each other
- `security`: turns a TCP connection into a secure one
- `sockets`: addresses, TCP and rate limits
- `stream`: a yamux stream that has agreed on a protocol, as the `Transport` interface requires it
- `tls`: libp2p's TLS 1.3
- `yamux`: many streams over one connection
"""

from swarm.libp2p.host import open_libp2p
from swarm.libp2p.port_mapping.gateways import find_gateways
from swarm.libp2p.port_mapping.port_mapper import PortMapped, PortMappingFailed
from swarm.libp2p.reachability.dial_policy import SHARED, is_loopback, is_private, is_public
from swarm.libp2p.reachability.reaching import MapPorts, TellPort
from swarm.libp2p.sockets.addresses import (
    Address,
    BadAddress,
    circuit_address,
    is_circuit,
    parse_address,
    why_no_host,
    why_undialable,
)

__all__ = [
    "SHARED",
    "Address",
    "BadAddress",
    "MapPorts",
    "PortMapped",
    "PortMappingFailed",
    "TellPort",
    "circuit_address",
    "find_gateways",
    "is_circuit",
    "is_loopback",
    "is_private",
    "is_public",
    "open_libp2p",
    "parse_address",
    "why_no_host",
    "why_undialable",
]
