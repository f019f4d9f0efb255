"""Whom a peer can meet, and at which addresses another is told of it.

What always holds: nobody is told of circuits who does not know them, since one address that a node cannot read makes it
leave all; whoever can be dialled is told as such, whoever cannot only to those who share its network, and through
relays to all others. An address inside a network is told to nobody outside, where it would be somebody else's: most
homes use the same few networks, so that whoever tells of one could have all others knock at their own printers.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from functools import lru_cache

from protocol.core.ids import PeerId
from protocol.core.limits import MAX_ADDRESSES
from protocol.reach import Reach, ReachKind
from protocol.versions.exchange import PeerAddresses
from swarm.libp2p import BadAddress, circuit_address, is_private, parse_address
from swarm.work.neighbour_graph import Meets

MEETS = {
    ReachKind.DIRECTLY: Meets.ALL,
    ReachKind.MAPPED: Meets.ALL,
    ReachKind.BY_PUNCHING: Meets.MOST,
    ReachKind.NOT: Meets.OPEN_ONES,
}
"""Who does not say how it is reached, or does not know yet, is introduced to everybody, as all were once."""

REMEMBERED = 16_384
"""Answers about addresses and origins, which are asked again with every introduction: of 4096 members some each."""

CIRCUITS_TOLD = 4
"""Addresses through relays: two relays, with an IPv4 and an IPv6 address each."""


def meets_of(reach: Reach | None, *, carries_bulk: bool = False) -> Meets:
    """Whom a peer can meet that is reached so; where the learner `carries_bulk`, whoever cannot be dialled meets its
    like through it."""
    meets = Meets.ALL if reach is None else MEETS.get(reach.kind, Meets.ALL)
    return Meets.MOST if carries_bulk and meets is Meets.OPEN_ONES else meets


def addresses_for(
    asker: Reach | None,
    peer: PeerId,
    reach: Reach | None,
    told: Sequence[str],
    relays: Mapping[PeerId, Sequence[str]],
    *,
    shares_network: bool,
) -> PeerAddresses:
    """Where a peer is that says of itself `reach` and `told`, for one that says `asker`; `relays` are the addresses of
    all that may be one, and `shares_network` whether the two are behind one router, as far as can be seen from here.
    """
    if not shares_network:
        told = [address for address in told if not _is_inside(address)]
    if reach is None or asker is None:
        return PeerAddresses(peer=peer, addresses=list(told))
    if reach.kind in {ReachKind.BY_PUNCHING, ReachKind.NOT}:
        direct = [address for address in told if _is_inside(address)]
    else:
        direct = [*(f"{address}/p2p/{peer}" for address in reach.addresses), *told]
    by_relay = [
        circuit_address(address, peer) for relay in reach.relays for address in relays.get(PeerId(relay), ())[:2]
    ]
    some = list(dict.fromkeys(direct))[: MAX_ADDRESSES - CIRCUITS_TOLD]
    return PeerAddresses(peer=peer, addresses=[*some, *by_relay[:CIRCUITS_TOLD]])


def share_network(one: str | None, other: str | None) -> bool:
    """Whether two origins may be one network's: they are the same, or both are of the network that we are on."""
    if one is None or other is None:
        return False
    return one == other or not (_is_outside(one) or _is_outside(other))


@lru_cache(maxsize=REMEMBERED)
def _is_outside(origin: str) -> bool:
    try:
        return ipaddress.ip_network(origin).is_global
    except ValueError:
        return True


@lru_cache(maxsize=REMEMBERED)
def _is_inside(address: str) -> bool:
    """Whether an address is one of a home's own network."""
    try:
        return is_private(parse_address(address))
    except BadAddress:
        return False
